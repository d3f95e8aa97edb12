#!/usr/bin/env bash
# The tests that depend on the kernel, on Debian's older and newer ones: each is booted in QEMU on
# this machine's files (read-only, with what is written on a disk of the virtual machine's) and in a
# cgroup of version 2. Nothing is installed but QEMU. Without KVM, processors are emulated, which
# takes ten to twenty times as long: programs have five times as long to end there, and a test that
# waits for something no longer than so many seconds may fail for that alone.
#
#   scripts/kernels.sh                                   every test, on each kernel
#   scripts/kernels.sh 'live memory::' 'userfault'       test programs and filters
#
# KERNELS="linux-image-6.12-amd64 …" names Debian's packages, KERNELS_ACCEL=kvm asks for KVM,
# KERNELS_SECONDS=1800 ends a test program. PAGEKEEPER_BIN and PAGEKEEPER_PRELOAD name what is tested, if it
# is not what `make build` leaves.
set -euo pipefail
cd "$(dirname "$0")/.."
export PATH="$HOME/.cargo/bin:$PATH"
read -ra kernels <<<"${KERNELS:-linux-image-amd64 linux-image-6.12-amd64}"
at="$PWD/target/kernels"
mkdir -p "$at"
bin=${PAGEKEEPER_BIN:-$PWD/target/release/pagekeeper}
preload=${PAGEKEEPER_PRELOAD:-$PWD/target/release/libpagekeeper_preload.so}

command -v qemu-system-x86_64 >/dev/null && [ -x /bin/busybox ] && command -v cpio >/dev/null &&
    command -v apparmor_parser >/dev/null || {
    apt-get update -qq
    DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends \
        qemu-system-x86 busybox-static kmod cpio xz-utils apparmor >/dev/null
}

# A package of the kernel's own, of a name that stands for the newest of a series.
resolved() {
    local real
    real=$(apt-cache depends --important "$1" | sed -n 's/.*Depends: \(linux-image-[0-9].*\)/\1/p')
    echo "${real:-$1}"
}

# The kernel's files, without installing them.
unpacked() {
    [ -d "$at/$1/boot" ] && return
    (cd "$at" && apt-get download -qq "$1" && dpkg -x "$1"_*.deb "$1" && rm "$1"_*.deb)
    depmod -b "$at/$1" "$(release "$1")"
}

release() { basename "$at/$1"/boot/vmlinuz-* | sed 's/^vmlinuz-//'; }

# What the kernel needs to find this machine's files, and what it does then.
initrd() { # PACKAGE DIRECTORY
    local version number=100 module
    version=$(release "$1")
    mkdir -p "$2"/{bin,proc,sys,dev,lower,disk,new,modules}
    cp /bin/busybox "$2/bin/"
    for module in virtio_pci virtio_blk ext4 9p 9pnet_virtio overlay; do
        modprobe -d "$at/$1" -S "$version" --show-depends $module 2>/dev/null
    done | awk '$1 == "insmod" && !seen[$2]++ { print $2 }' | while read -r module; do
        number=$((number + 1))
        case $module in
            *.xz) xz -dc "$module" >"$2/modules/$number-$(basename "$module" .xz)" ;;
            *) cp "$module" "$2/modules/$number-$(basename "$module")" ;;
        esac
    done
    cat >"$2/init" <<INIT
#!/bin/busybox sh
/bin/busybox --install -s /bin
mount -t proc proc /proc; mount -t sysfs sys /sys; mount -t devtmpfs dev /dev
for module in /modules/*; do insmod \$module; done
mount -t 9p -o trans=virtio,version=9p2000.L,msize=524288,cache=loose,ro host /lower
mount -t ext4 /dev/vda /disk
mkdir -p /disk/up /disk/work /disk/tmp /disk/target; chmod 1777 /disk/tmp
mount -t overlay -o lowerdir=/lower,upperdir=/disk/up,workdir=/disk/work over /new
for here in proc sys dev; do mount --move /\$here /new/\$here; done
mkdir -p /new/dev/pts /new/dev/shm $PWD/target/tmp
mount -t devpts devpts /new/dev/pts; mount -t tmpfs shm /new/dev/shm; mount -t tmpfs run /new/run
mount --bind /disk/tmp /new/tmp; mount --bind /disk/target /new$PWD/target/tmp
mount -t securityfs security /new/sys/kernel/security
mount -t cgroup2 cgroup2 /new/sys/fs/cgroup
echo "+memory +io +cpu +pids" >/new/sys/fs/cgroup/cgroup.subtree_control
# As on Ubuntu.
echo 1 >/proc/sys/kernel/yama/ptrace_scope
ip link set lo up; ulimit -n 1048576
cp /tests /new/tests
# Not by chroot: to AppArmor, paths begin at the root of all.
exec switch_root /new /bin/bash -c '/bin/bash /tests; /bin/busybox poweroff -f'
INIT
    chmod 755 "$2/init"
}

# Test programs: package's directory, name, program.
cargo test --release --workspace --exclude pagekeeper-preload --no-run --message-format=json \
    2>/dev/null | python3 -c '
import json, os, sys
for line in sys.stdin:
    built = json.loads(line)
    if built.get("executable") and built["profile"]["test"]:
        path = os.path.dirname(built["manifest_path"])
        print(path, built["target"]["name"], built["executable"])
' >"$at/programs"
wanted=("$@")
[ $# -gt 0 ] || wanted=(pagekeeper_sys doctor file mask userfault library
    library_regions logged_power_cut pagekeeper_capi c_programs outputs watch live
    preload)

tests() {
    local one name filter
    cat <<HEAD
cd $PWD
export HOME=/root PATH=$PATH TMPDIR=/tmp CARGO_TARGET_TMPDIR=$PWD/target/tmp
export PAGEKEEPER_BIN=$bin
export PAGEKEEPER_PRELOAD=$preload
export PAGEKEEPER_TEST_PYTHON=$PWD/.venv/bin/python PAGEKEEPER_TEST_PATIENCE=$patience
uname -r; $bin doctor
HEAD
    for one in "${wanted[@]}"; do
        read -r name filter <<<"$one"
        echo "echo '== $one'"
        if [ "$name" = preload ]; then
            echo "timeout -s KILL ${KERNELS_SECONDS:-1800} crates/preload/tests/run.sh $preload"
            continue
        fi
        awk -v name="$name" -v filter="$filter" -v seconds="${KERNELS_SECONDS:-1800}" \
            '$2 == name { print "(cd " $1 " && timeout -s KILL " seconds " " $3 " --color never " filter ")" }' \
            "$at/programs"
    done
}

case ${KERNELS_ACCEL:-tcg} in
    kvm) accel=(-accel kvm -cpu host) patience=1 ;;
    # (QEMU before 9.1 takes an `iret` of a program for the kernel's, which SMAP forbids it.)
    *) accel=(-accel tcg,thread=multi -cpu max,-smap) patience=5 ;;
esac
failed=0
for kernel in "${kernels[@]}"; do
    kernel=$(resolved "$kernel")
    unpacked "$kernel"
    work=$(mktemp -d -p "$at")
    initrd "$kernel" "$work/init"
    tests >"$work/init/tests"
    (cd "$work/init" && find . | cpio -o -H newc --quiet | gzip -1) >"$work/initrd.gz"
    truncate -s 30G "$work/disk"
    mkfs.ext4 -q -F "$work/disk"
    qemu-system-x86_64 "${accel[@]}" -m 6G -smp 2 -nodefaults -nographic -no-reboot -serial stdio \
        -kernel "$at/$kernel/boot/vmlinuz-$(release "$kernel")" -initrd "$work/initrd.gz" \
        -append "console=ttyS0 quiet panic=-1" \
        -drive "file=$work/disk,if=virtio,format=raw,cache=none,aio=native,discard=unmap" \
        -fsdev local,id=host,path=/,security_model=none,readonly=on,multidevs=remap \
        -device virtio-9p-pci,fsdev=host,mount_tag=host </dev/null | tee "$at/$kernel.log"
    rm -r "$work"
    echo "kernels: $kernel: $(grep -c '^test .*ok' "$at/$kernel.log" || true) tests passed;" \
        "failed:" $(sed -n 's/^test \(.*\) \.\.\. FAILED.*/\1/p' "$at/$kernel.log")
    grep -qE '^test .*FAILED|Killed' "$at/$kernel.log" && failed=1
done
exit $failed

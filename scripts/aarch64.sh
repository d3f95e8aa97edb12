#!/usr/bin/env bash
# The tests that depend on the machine, on AArch64: built for it here, and run in QEMU under Debian's
# kernel with an AArch64 Debian beside. Processors are emulated, which takes ten to twenty times as long:
# a test that waits for something no longer than so many seconds may fail for that alone.
#
#   scripts/aarch64.sh                                   every test
#   scripts/aarch64.sh 'live memory::' 'userfault'       test programs and filters
#
# AARCH64_KERNEL=linux-image-arm64 names Debian's package, AARCH64_SECONDS=1800 ends a test program.
# Installs a cross compiler, QEMU and debootstrap, and makes Debian's AArch64 packages known to apt.
set -euo pipefail
cd "$(dirname "$0")/.."
export PATH="$HOME/.cargo/bin:$PATH"
triple=aarch64-unknown-linux-gnu
at="$PWD/target/aarch64"
root="$at/root"
mkdir -p "$at"

command -v qemu-system-aarch64 >/dev/null && command -v aarch64-linux-gnu-gcc >/dev/null &&
    command -v debootstrap >/dev/null && dpkg --print-foreign-architectures | grep -q arm64 || {
    dpkg --add-architecture arm64
    apt-get update -qq
    DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends qemu-system-arm \
        ipxe-qemu gcc-aarch64-linux-gnu libc6-dev-arm64-cross debootstrap kmod cpio xz-utils >/dev/null
}
rustup target list --installed | grep -q $triple || rustup target add $triple

# The kernel's files, without installing them.
kernel=${AARCH64_KERNEL:-linux-image-6.12-arm64}
kernel=$(apt-cache depends --important "$kernel:arm64" |
    sed -n 's/.*Depends: \(linux-image-[0-9][^:]*\).*/\1/p' | grep . || echo "$kernel")
[ -d "$at/$kernel/boot" ] || (
    cd "$at" && apt-get download -qq "$kernel:arm64" 2>/dev/null
    dpkg -x "$kernel"_*.deb "$kernel" && rm "$kernel"_*.deb
    depmod -b "$kernel" "$(basename "$kernel"/boot/vmlinuz-* | sed 's/^vmlinuz-//')"
)
release=$(basename "$at/$kernel"/boot/vmlinuz-* | sed 's/^vmlinuz-//')

# Packages are unpacked and not set up, which nothing here needs.
[ -e "$root/tests" ] || (
    rm -rf "$root"
    debootstrap --foreign --arch=arm64 --variant=minbase \
        --include=python3,sqlite3,procps,busybox-static,gcc,libc6-dev,e2fsprogs bookworm "$root" >/dev/null
    for package in "$root"/var/cache/apt/archives/*.deb; do dpkg -x "$package" "$root"; done
    rm -rf "$root/var/cache/apt/archives"
    printf 'root:x:0:0:root:/root:/bin/bash\nnobody:x:65534:65534::/:/bin/false\n' >"$root/etc/passwd"
    printf 'root:x:0:\nnogroup:x:65534:\n' >"$root/etc/group"
    ln -sf gcc "$root/usr/bin/cc"
    mkdir -p "$root/root" && chmod 1777 "$root/tmp"
)

export CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER=aarch64-linux-gnu-gcc
export CC_aarch64_unknown_linux_gnu=aarch64-linux-gnu-gcc AR_aarch64_unknown_linux_gnu=aarch64-linux-gnu-ar
export CARGO_TARGET_DIR="$at/build" CARGO_PROFILE_RELEASE_DEBUG=0
built="$at/build/$triple"
cargo build --quiet --profile preload -p pagekeeper-preload --target $triple
# Test programs: package's directory, name, program.
cargo test --release -p pagekeeper-sys -p pagekeeper -p pagekeeper-cli --target $triple --no-run \
    --message-format=json | python3 -c '
import json, os, sys
for line in sys.stdin:
    built = json.loads(line)
    if built.get("executable") and built["profile"]["test"]:
        path = os.path.dirname(built["manifest_path"])
        print(path, built["target"]["name"], built["executable"])
' >"$at/programs"

wanted=("$@")
[ $# -gt 0 ] || wanted=(pagekeeper_sys doctor file mask userfault library library_regions
    outputs watch live preload)
rm -rf "${root:?}$PWD"
mkdir -p "$root$PWD" "$root$built/"{tmp,release/deps,preload}
tar c --exclude=./target --exclude=./.git --exclude='./.venv*' . | tar x -C "$root$PWD"
cp "$built/release/pagekeeper" "$root$built/release/"
cp "$built/preload/libpagekeeper_preload.so" "$root$built/preload/"
rm -f "$root$built"/release/deps/*
{
    cat <<HEAD
cd $PWD
export HOME=/root PATH=/usr/sbin:/usr/bin:/sbin:/bin TMPDIR=/tmp PAGEKEEPER_TEST_PYTHON=/usr/bin/python3
export PAGEKEEPER_BIN=$built/release/pagekeeper
export PAGEKEEPER_PRELOAD=$built/preload/libpagekeeper_preload.so
uname -rm; $built/release/pagekeeper doctor
HEAD
    for one in "${wanted[@]}"; do
        read -r name filter <<<"$one"
        limit="timeout -s KILL ${AARCH64_SECONDS:-1800}"
        echo "echo '== $one'"
        if [ "$name" = preload ]; then
            echo "$limit crates/preload/tests/run.sh \$PAGEKEEPER_PRELOAD"
            continue
        fi
        while read -r directory known program; do
            [ "$known" = "$name" ] || continue
            cp "$program" "$root$program"
            echo "(cd $directory && $limit $program --color never $filter)"
        done <"$at/programs"
    done
} >"$root/tests"

work=$(mktemp -d -p "$at")
trap 'rm -rf "$work"' EXIT
init="$work/init"
mkdir -p "$init"/{bin,proc,sys,dev,new,modules}
cp "$root/bin/busybox" "$init/bin/" && ln -s busybox "$init/bin/sh"
number=100
for module in virtio_pci virtio_blk ext4; do
    modprobe -d "$at/$kernel" -S "$release" --show-depends $module 2>/dev/null
done | awk '$1 == "insmod" && !seen[$2]++ { print $2 }' | while read -r module; do
    number=$((number + 1))
    case $module in
        *.xz) xz -dc "$module" >"$init/modules/$number-$(basename "$module" .xz)" ;;
        *) cp "$module" "$init/modules/$number-$(basename "$module")" ;;
    esac
done
cat >"$init/init" <<'INIT'
#!/bin/busybox sh
/bin/busybox --install -s /bin
mount -t proc proc /proc; mount -t sysfs sys /sys; mount -t devtmpfs dev /dev
for module in /modules/*; do insmod $module; done
mount -t ext4 /dev/vda /new
for here in proc sys dev; do mount --move /$here /new/$here; done
mkdir -p /new/dev/pts /new/dev/shm
mount -t devpts devpts /new/dev/pts; mount -t tmpfs shm /new/dev/shm; mount -t tmpfs run /new/run
mount -t cgroup2 cgroup2 /new/sys/fs/cgroup
echo "+memory +io +cpu +pids" >/new/sys/fs/cgroup/cgroup.subtree_control
ip link set lo up; ulimit -n 1048576
chroot /new /bin/bash /tests
poweroff -f
INIT
chmod 755 "$init/init"
(cd "$init" && find . | cpio -o -H newc --quiet | gzip -1) >"$work/initrd.gz"
truncate -s 12G "$work/disk"
mkfs.ext4 -q -F -d "$root" "$work/disk"
qemu-system-aarch64 -M virt -cpu max -accel tcg,thread=multi -m 4G -smp 2 -nodefaults -nographic \
    -no-reboot -serial stdio -kernel "$at/$kernel/boot/vmlinuz-$release" -initrd "$work/initrd.gz" \
    -append "console=ttyAMA0 quiet panic=-1" \
    -drive "file=$work/disk,if=none,id=disk,format=raw,cache=none,aio=native,discard=unmap" \
    -device virtio-blk-pci,drive=disk </dev/null | tee "$at/log"
echo "aarch64: $kernel: $(grep -c '^test .*ok' "$at/log" || true) tests passed;" \
    "failed:" $(sed -n 's/^test \(.*\) \.\.\. FAILED.*/\1/p' "$at/log")
! grep -qE '^test .*FAILED|Killed|^FAILED' "$at/log"

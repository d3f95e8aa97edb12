#!/usr/bin/env bash
# Long tests of others' making, and our own long one, on files that `pagekeeper run` manages with
# far too little memory. Nothing may be lost, and nothing zeroed.
#
#   scripts/stress.sh [fsx|lmdb|stress-ng|sqlite|packages|servers|indexes|stamps|calls|delayed|standby|
#       ends]...
#   all without arguments
#
# `delayed` is fsx, LMDB's and SQLite's where writes are delayed.
#
# `standby` is LMDB's and SQLite's under `auto` in a cgroup, where files are the kernel's at first, and a
# switch of the policy ends that in the midst of the program. `ends` repeats our own tests of that moment.
#
# `packages` are sixteen of PyPI's that databases, arrays, indexes and model weights are kept with; what
# they find must be what they find without a manager.
#
# `servers` are postgres, redis and mariadb under load, killed in its midst and started again
# (scripts/servers.sh); those that are installed.
#
# `indexes` are programs that map what they search (scripts/indexes.sh): blast, bowtie2, git,
# RocksDB's tools, samtools and slapd, those that are installed.
#
# `calls` repeats our own test of random operations by all routes to a file that libc has, with other seeds:
# each must find, and leave, what it does without a manager.
#
# How long: FSX_SEEDS (per configuration), FSX_OPERATIONS, LMDB_SEEDS, STRESS_SECONDS (per
# stressor), STAMPS_WRITES, RANDOM_SEEDS (for each memory and policy), RANDOM_FIRST_SEED,
# RANDOM_OPERATIONS, STANDBY_SECONDS (after which one ends), STANDBY_TIMES (that `ends` repeats),
# STANDBY_KILLS (somebody is killed). Sources come from Debian, fsx from crates.io,
# packages from PyPI; all stay under target/stress, as what a failure leaves does.
set -uo pipefail
cd "$(dirname "$0")/.."
root="$PWD"
export PATH="$HOME/.cargo/bin:$PATH"
target="${CARGO_TARGET_DIR:-$root/target}"
work="$target/stress"
bin="${PAGEKEEPER_BIN:-$target/release/pagekeeper}"
export PAGEKEEPER_PRELOAD="${PAGEKEEPER_PRELOAD:-$target/release/libpagekeeper_preload.so}"
mkdir -p "$work"
failures=0

# run NAME KIB POLICY PATTERN COMMAND...: under a manager; its output in out.NAME, its counts in
# stats.NAME.
run() {
    local name="$1" kib="$2" policy="$3" pattern="$4" start=()
    shift 4
    if [ -n "$standby_s" ]; then
        # So that it is a cgroup whose page cache the memory is about as large as, with room for the
        # thirty processes of some tests.
        start=(in_cgroup $(((kib << 11) + (56 << 20))))
        (sleep "$standby_s" && switch_to "$policy") &
        policy=auto
    fi
    "${start[@]}" timeout "${LIMIT:-900}" "$bin" run --config /dev/null --min-size 0 \
        --policy "$policy" --memory "$((kib << 10))" --files "$pattern" \
        --stats "$work/stats.$name" "${options[@]}" -- "$@" >"$work/out.$name" 2>&1
}

# More of `pagekeeper run`.
options=()

# Seconds after which a standby is ended; empty: there is none.
standby_s=""

cgroup_root=/sys/fs/cgroup/memory
cgroup_limit=memory.limit_in_bytes
[ -d "$cgroup_root" ] || { cgroup_root=/sys/fs/cgroup && cgroup_limit=memory.max; }
cgroup="$cgroup_root/pagekeeper-stress-$$"

# in_cgroup BYTES COMMAND...
in_cgroup() {
    mkdir -p "$cgroup" && echo "$1" >"$cgroup/$cgroup_limit" || return 69
    # shellcheck disable=SC2016
    sh -c 'echo $$ >"$0/cgroup.procs" && exec "$@"' "$cgroup" "${@:2}"
}

# switch_to POLICY: whatever runs in the cgroup.
switch_to() {
    local pid
    for pid in $(cat "$cgroup/cgroup.procs" 2>/dev/null); do
        "$bin" switch "$pid" "$1" >/dev/null 2>&1 && return
    done
}

# counts NAME: what a run that succeeded was put through.
counts() {
    sed -n 's/^ *"\(major_faults\|evictions\|write_backs\|failed_faults\)": \([0-9]*\),*$/\1 \2/p' \
        "$work/stats.$1" | head -4 | paste -sd' '
}

passed() { echo "ok      $1: $(counts "${2:-$1}")"; }

failed() {
    echo "FAILED  $1: see $work/out.${2:-$1}"
    failures=$((failures + 1))
}

# Debian's packages, where they are missing and can be had.
need() {
    local missing=()
    for package in "$@"; do
        dpkg-query -W -f '${Status}' "$package" 2>/dev/null | grep -q 'ok installed' ||
            missing+=("$package")
    done
    [ ${#missing[@]} = 0 ] && return 0
    if [ "$(id -u)" != 0 ] || ! command -v apt-get >/dev/null; then
        echo "SKIPPED: ${missing[*]} is not installed"
        return 1
    fi
    apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq "${missing[@]}" \
        >/dev/null || { echo "SKIPPED: ${missing[*]} cannot be installed"; return 1; }
}

# source PACKAGE: unpacks Debian's source of it into $work/src, with lists of its own.
source_of() {
    local here="$work/src"
    ls -d "$here/$1"-*/ >/dev/null 2>&1 && return 0
    need dpkg-dev || return 1
    mkdir -p "$here/lists/partial"
    echo "deb-src http://deb.debian.org/debian stable main" >"$here/sources.list"
    local only=(-o "Dir::Etc::sourcelist=$here/sources.list" -o Dir::Etc::sourceparts=/dev/null
        -o "Dir::State::lists=$here/lists")
    (cd "$here" && apt-get "${only[@]}" -qq update && apt-get "${only[@]}" -qq source "$1") \
        >"$work/out.source" 2>&1 || { echo "SKIPPED: the source of $1 cannot be had"; return 1; }
}

# ---- fsx -----------------------------------------------------------------------------------------

# One seed's settings; mappings are stored to without msync by every other seed.
fsx_settings() {
    local seed="$1"
    cat <<END
flen = $((262144 << (seed % 5)))
nomsyncafterwrite = $([ $((seed % 2)) = 1 ] && echo true || echo false)
[opsize]
max = $((65536 << (seed % 3)))
min = 0
align = $([ $((seed % 3)) = 0 ] && echo 4096 || echo 1)
[weights]
close_open = 2
read = 10
write = 10
mapread = 10
mapwrite = 12
invalidate = 2
truncate = 4
fsync = 1
fdatasync = 1
# With an alignment, fsx asks for empty ranges, which no file system takes.
posix_fallocate = $([ $((seed % 3)) = 0 ] && echo 0 || echo 2)
punch_hole = 4
sendfile = 3
posix_fadvise = 2
copy_file_range = 4
END
}

fsx() {
    local fsx="$work/fsx/bin/fsx" operations="${FSX_OPERATIONS:-20000}" name place
    [ -x "$fsx" ] || cargo install --quiet --locked fsx --version 0.3.2 --root "$work/fsx" \
        --target-dir "$work/fsx-build" || { echo "SKIPPED: fsx cannot be had"; return; }
    place="$work/fsx-files"
    local configuration=0
    for settings in "256 lru" "256 mru" "1024 clock" "4096 lru"; do
        read -r kib policy <<<"$settings"
        for n in $(seq "${FSX_SEEDS:-8}"); do
            local seed=$((1000 * configuration + n))
            name="fsx.$kib.$policy.$seed"
            rm -rf "$place" && mkdir -p "$place/artifacts"
            fsx_settings "$seed" >"$place/fsx.toml"
            if run "$name" "$kib" "$policy" "$place/f" "$fsx" -q -f "$place/fsx.toml" -S "$seed" \
                -N "$operations" -P "$place/artifacts" "$place/f"; then
                passed "$name"
            else
                failed "$name"
            fi
        done
        configuration=$((configuration + 1))
    done
    # Two at once, on one budget.
    for n in $(seq "${FSX_SEEDS:-8}"); do
        name="fsx.two.$n"
        rm -rf "$place" && mkdir -p "$place/artifacts"
        fsx_settings "$n" >"$place/1.toml"
        fsx_settings "$((n + 1))" >"$place/2.toml"
        # shellcheck disable=SC2016
        if run "$name" 512 clock "$place/f*" sh -c '
            "$1" -q -f "$2/1.toml" -S "$3" -N "$4" -P "$2/artifacts" "$2/f1" & first=$!
            "$1" -q -f "$2/2.toml" -S "$((500 + $3))" -N "$4" -P "$2/artifacts" "$2/f2"
            second=$?; wait $first && exit $second' \
            - "$fsx" "$place" "$n" "$operations"; then
            passed "$name"
        else
            failed "$name"
        fi
    done
}

# ---- LMDB ----------------------------------------------------------------------------------------

# What LMDB's tests say, without the addresses and what we say in the midst of it.
lmdb_output() { sed -z 's/pagekeeper: [^\n]*\n//g' "$1" | sed 's/0x[0-9a-f]*/@/g'; }

# LMDB's own tests with more records, as they are, without MDB_FIXEDMAP, with WRITEMAP, and with
# WRITEMAP and MAPASYNC: the output must be what it is without a manager, and so must the records.
lmdb() {
    source_of lmdb || return
    need gcc libc6-dev || return
    local src place="$work/lmdb" name
    src="$(ls -d "$work"/src/lmdb-*/libraries/liblmdb)"
    mkdir -p "$place"
    cc -O1 -w -pthread -I"$src" -o "$place/mdb_dump" "$src/mdb_dump.c" "$src/mdb.c" \
        "$src/midl.c" 2>"$work/out.source" || { failed lmdb source; return; }
    for test in mtest mtest2 mtest3 mtest4 mtest5; do
        for flags in MDB_NOTLS MDB_FIXEDMAP "MDB_WRITEMAP" "MDB_WRITEMAP|MDB_MAPASYNC"; do
            for seed in $(seq "${LMDB_SEEDS:-3}"); do
                name="lmdb.$test.${flags//|/.}.$seed${standby_s:+.after.$standby_s}"
                sed "s/MDB_FIXEDMAP/$flags/; s/time(NULL)/$seed/; s/rand()%384/rand()%4000/
                     s/rand()%1024/rand()%1000000/; s/%03x/%05x/g
                     s/key.mv_size = sizeof(int)/key.mv_size = 8/" "$src/$test.c" >"$place/test.c"
                cc -O1 -w -pthread -I"$src" -o "$place/test" "$place/test.c" "$src/mdb.c" \
                    "$src/midl.c" 2>"$work/out.source" || { failed "$name" source; continue; }
                (rm -rf "$place/bare" && mkdir -p "$place/bare/testdb" && cd "$place/bare" &&
                    timeout 100 ../test >../bare.out 2>&1)
                rm -rf "$place/managed" && mkdir -p "$place/managed/testdb"
                # Its lock file is mapped to write from the start, which ends a standby.
                local files="$place/managed/testdb/${standby_s:+data.md}*"
                if (cd "$place/managed" && run "$name" 96 lru "$files" ../test) &&
                    cmp -s <(lmdb_output "$work/out.$name") <(lmdb_output "$place/bare.out") &&
                    cmp -s <("$place/mdb_dump" -p "$place/bare/testdb" | grep -v ^mapaddr) \
                        <("$place/mdb_dump" -p "$place/managed/testdb" | grep -v ^mapaddr); then
                    passed "$name"
                else
                    failed "$name"
                fi
            done
        done
    done
}

# ---- stress-ng -----------------------------------------------------------------------------------

# Its stressors of mapped memory and of files, each of which checks what it reads (--verify).
stress_ng() {
    need stress-ng || return
    local place="$work/stress-ng" n=0 name
    while read -r stressor; do
        n=$((n + 1))
        name="stress-ng.$n"
        rm -rf "$place" && mkdir -p "$place"
        # shellcheck disable=SC2086
        if LIMIT=$((120 + ${STRESS_SECONDS:-10})) run "$name" 4096 clock "$place/**" stress-ng \
            --temp-path "$place" $stressor --verify --timeout "${STRESS_SECONDS:-10}" &&
            ! grep -q 'stress-ng: fail' "$work/out.$name"; then
            passed "stress-ng $stressor" "$name"
        else
            failed "stress-ng $stressor" "$name"
        fi
    done <<'END'
--mmap 2 --mmap-bytes 16M --mmap-file
--mmap 2 --mmap-bytes 16M --mmap-file --mmap-async --mmap-mprotect
--mmap 1 --mmap-bytes 8M --mmap-file --mmap-odirect
--mmap 1 --mmap-bytes 8M --mmap-file --mmap-osync
--mmapfork 1
--mmapaddr 1
--mmapfixed 1
--mmapmany 1
--mremap 2 --mremap-bytes 8M
--remap 1
--msync 2 --msync-bytes 16M
--msyncmany 1
--madvise 2
--mincore 2
--mlock 1
--filename 1
--fallocate 1 --fallocate-bytes 8M
--hdd 1 --hdd-bytes 8M --hdd-opts wr-rnd,rd-rnd
--seek 1 --seek-size 8M --seek-punch
--readahead 1 --readahead-bytes 8M
--sendfile 1 --sendfile-size 1M
--splice 1
--iomix 1 --iomix-bytes 4M
--revio 1 --revio-bytes 4M
--sync-file 1 --sync-file-bytes 8M
--dup 1
--fork 1
--lockf 1
END
}

# ---- SQLite --------------------------------------------------------------------------------------

# SQLite's own tests of mapped I/O, of the write-ahead log and of crashes. A test that fails without
# a manager too (some do when root runs them) is not counted.
sqlite() {
    source_of sqlite3 || return
    need gcc make tcl-dev zlib1g-dev || return
    local src place="$work/sqlite" name kib=256
    # `mmap4` goes over 1 GiB of holes, of which a file that is managed in its midst reads a large part.
    [ -n "$standby_s" ] && kib=4096
    src="$(ls -d "$work"/src/sqlite3-*/)"
    if [ ! -x "$src/testfixture" ]; then
        (cd "$src" && ./configure --with-tcl="$(dirname "$(find /usr/lib -name tclConfig.sh |
            head -1)")" && make testfixture) >"$work/out.source" 2>&1 ||
            { failed sqlite source; return; }
    fi
    for test in mmap1 mmap2 mmap3 mmap4 mmapfault mmapwarm wal wal2 wal3 wal4 wal5 wal6 wal7 wal8 \
        wal9 wal64k walbak walbig walcksum walcrash walcrash2 walmode waloverwrite walpersist \
        walro walro2 walshared; do
        name="sqlite.$test${standby_s:+.after.$standby_s}"
        rm -rf "$place" && mkdir -p "$place"
        if (cd "$place" && run "$name" "$kib" clock "$place/**" "$src/testfixture" \
            "$src/test/$test.test"); then
            passed "$name ($(grep -o '[0-9]* errors out of [0-9]* tests' "$work/out.$name"))" \
                "$name"
        else
            rm -rf "$place" && mkdir -p "$place"
            (cd "$place" && timeout 900 "$src/testfixture" "$src/test/$test.test") \
                >"$work/out.$name.bare" 2>&1
            # To its end: what was killed says nothing of failures.
            if grep -q 'errors out of' "$work/out.$name" &&
                cmp -s <(grep '^! ' "$work/out.$name") <(grep '^! ' "$work/out.$name.bare"); then
                passed "$name (fails in the same way without a manager)" "$name"
            else
                failed "$name"
            fi
        fi
    done
}

# ---- standing by ---------------------------------------------------------------------------------

standby() {
    for standby_s in ${STANDBY_SECONDS:-0.01 0.03 0.1 0.3}; do
        lmdb
        sqlite
    done
    standby_s=""
    rmdir "$cgroup" 2>/dev/null
}

# ---- delayed ---------------------------------------------------------------------------------------

delayed() {
    options=(--delay-writes)
    fsx
    lmdb
    sqlite
    options=()
}

# ends: the tests of standbys time and again, and somebody killed in the moment.
ends() {
    local n
    export STANDBY_KILLS="${STANDBY_KILLS:-150}"
    for n in $(seq "${STANDBY_TIMES:-10}"); do
        if cargo test --quiet --release -p pagekeeper-cli --test live standby:: \
            >"$work/out.ends.$n" 2>&1; then
            echo "ok      ends.$n"
        else
            failed "ends.$n"
        fi
    done
    if cargo test --quiet --release -p pagekeeper-cli --test live kill::end_of_a_standby \
        >"$work/out.ends.kills" 2>&1; then
        echo "ok      ends.kills"
    else
        failed ends.kills
    fi
}

# ---- packages of PyPI ----------------------------------------------------------------------------

packages() {
    local python="$work/venv/bin/python" name how found wanted n
    [ -x "$python" ] || python3 -m venv "$work/venv"
    "$python" -m pip install --quiet --disable-pip-version-check annoy==1.17.3 diskcache==5.6.3 \
        duckdb==2.0.0 faiss-cpu==1.15.1 h5py==3.16.0 hnswlib==0.8.0 lmdb==3.0.0 numpy==2.4.6 \
        pandas==3.1.1 plyvel==1.5.1 polars==2.1.0 pyarrow==26.0.1 rocksdict==0.3.29 \
        safetensors==0.8.0 tantivy==0.27.0 zarr==3.1.6 >"$work/out.packages" 2>&1 ||
        { echo "SKIPPED: packages cannot be had from PyPI"; return; }
    for name in duckdb polars pyarrow h5py safetensors faiss plyvel rocksdict tantivy annoy hnswlib \
        lmdb diskcache zarr pandas numpy; do
        rm -rf "$work/packages"
        wanted="$("$python" scripts/packages.py "$name" "$work/packages/bare" 2>/dev/null)"
        n=0
        for how in "--memory 4M --policy clock --min-size 4096" \
            "--memory 8M --policy auto --from-start --min-size 1" \
            "--memory 64M --policy lru --heap=65536"; do
            n=$((n + 1))
            rm -rf "$work/packages"
            # shellcheck disable=SC2086
            found="$(timeout "${LIMIT:-900}" "$bin" run --config /dev/null $how \
                --stats "$work/stats.$name.$n" -- "$python" scripts/packages.py "$name" \
                "$work/packages/managed" 2>"$work/out.$name.$n")"
            if [ -n "$wanted" ] && [ "$found" = "$wanted" ]; then
                passed "$name.$n"
            else
                echo "found $found, and $wanted without a manager" >>"$work/out.$name.$n"
                failed "$name.$n"
            fi
        done
    done
    rm -rf "$work/packages"
}

# ---- servers and indexes -------------------------------------------------------------------------

# both_ways SCRIPT NAME PLACE HOW...: what a script finds of a program under each of these options must
# be what it finds of it alone.
both_ways() {
    local script="$1" name="$2" place="$3" how found wanted n=0
    shift 3
    wanted="$("$script" "$name" "$place/bare" 2>"$work/out.$name.bare")"
    for how in "$@"; do
        n=$((n + 1))
        # shellcheck disable=SC2086
        found="$(timeout "${LIMIT:-900}" "$script" "$name" "$place/managed" "$bin" run \
            --config /dev/null $how -- 2>"$work/out.$name.$n")"
        if [ -n "$wanted" ] && [ "$found" = "$wanted" ]; then
            echo "ok      $name.$n"
        else
            printf 'found\n%s\nand without a manager\n%s\n' "$found" "$wanted" >>"$work/out.$name.$n"
            failed "$name.$n"
        fi
    done
}

# is_there NAME PROGRAM
is_there() { command -v "$2" >/dev/null || { echo "SKIPPED: $1 is not installed"; return 1; }; }

servers() {
    local name place
    [ "$(id -u)" = 0 ] || { echo "SKIPPED: servers need root, to become another user"; return; }
    place="$(mktemp -d)" && chmod 755 "$place"
    for name in postgres:psql redis:redis-server mariadb:mariadbd; do
        is_there "${name%:*}" "${name#*:}" || continue
        both_ways scripts/servers.sh "${name%:*}" "$place" "--memory 64M" \
            "--memory 16M --policy auto --from-start --min-size 0" \
            "--memory 4M --policy clock --min-size 0"
    done
    rm -rf "$place"
}

indexes() {
    local name place="$work/indexes"
    for name in blast:blastn bowtie2:bowtie2 git:git rocksdb:db_bench samtools:samtools slapd:slapd; do
        is_there "${name%:*}" "${name#*:}" || continue
        both_ways scripts/indexes.sh "${name%:*}" "$place" \
            "--memory 4M --policy clock --min-size 4096" \
            "--memory 8M --policy auto --from-start --min-size 1" \
            "--memory 64M --policy lru --heap=65536" "--memory 16M"
    done
    rm -rf "$place"
}

# ---- our own -------------------------------------------------------------------------------------

stamps() {
    local place="$work/stamps" writes="${STAMPS_WRITES:-100000000}" start="$SECONDS"
    rm -rf "$place" && mkdir -p "$place/managed"
    cc -O2 -pthread -o "$place/stamps" crates/cli/tests/live/c/stamps.c || { failed stamps; return; }
    if LIMIT=14400 run stamps 8192 clock "$place/managed/*" "$place/stamps" run \
        "$place/managed/file" "$place/expected" "$writes" 3 2 4000 &&
        "$place/stamps" check "$place/managed/file" "$place/expected"; then
        grep 'checked writes' "$work/out.stamps"
        passed "stamps in $((SECONDS - start)) s" stamps
    else
        failed stamps
    fi
}

# In batches, so that a failure costs the rest of one only.
calls() {
    local batch=10 operations="${RANDOM_OPERATIONS:-300}" first="${RANDOM_FIRST_SEED:-1000}" last n
    last=$((first + ${RANDOM_SEEDS:-200} - 1))
    for n in $(seq "$first" "$batch" "$last"); do
        if RANDOM_FIRST_SEED="$n" RANDOM_OPERATIONS="$operations" \
            RANDOM_SEEDS="$((last - n + 1 < batch ? last - n + 1 : batch))" \
            cargo test --quiet --release -p pagekeeper-cli --test live random:: -- --nocapture \
            >"$work/out.calls.$n" 2>&1; then
            echo "ok      calls.$n: $(grep -c '^random .* major faults' "$work/out.calls.$n") runs"
        else
            failed "calls.$n"
        fi
    done
}

# ---- what to run ---------------------------------------------------------------------------------

[ $# = 0 ] && set -- fsx lmdb stress-ng sqlite packages servers indexes stamps calls delayed \
    standby ends
for part in "$@"; do
    case "$part" in
        fsx | lmdb | sqlite | packages | servers | indexes | stamps | calls | delayed | standby | ends)
            "$part"
            ;;
        stress-ng) stress_ng ;;
        *) echo "stress: there is no part $part" >&2; exit 2 ;;
    esac
done
[ "$failures" = 0 ] || { echo "$failures failed"; exit 1; }

#!/bin/bash
# Tests the preload library as programs meet it: LD_PRELOADed, with and without a manager.
#
#     crates/preload/tests/run.sh [LIBRARY]
#
# Builds the library (profile `preload`) unless one is given. Needs a C compiler, python3 and, for
# a part, sqlite3. A test compares a program's output and exit code with a bare run's.
set -u
here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../../.." && pwd)
library=${1:-}
if [ -z "$library" ]; then
    cargo build --quiet --manifest-path "$root/Cargo.toml" -p pagekeeper-preload --profile preload || exit 1
    library=${CARGO_TARGET_DIR:-$root/target}/preload/libpagekeeper_preload.so
fi
library=$(realpath "$library")
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
${CC:-cc} -O1 -pthread -w "$here/exercise.c" -o exercise || exit 1
failures=0 passed=0

managed() { # ARGS of fake_manager.py, -- PROGRAM…
    timeout 120 python3 "$here/fake_manager.py" --library "$library" --log log "$@"
}

check() { # NAME, EXPECTED CODE, CODE, EXPECTED OUTPUT, OUTPUT
    if [ "$2" = "$3" ] && cmp -s "$4" "$5"; then
        passed=$((passed + 1))
    else
        failures=$((failures + 1))
        echo "FAILED: $1 (exit code $3, expected $2)"
        diff "$4" "$5" | head -5
    fi
}

logged() { # NAME, PYTHON EXPRESSION over the log
    if python3 -c "import json; log = json.load(open('log')); n = log['counts']; assert $2" 2>/dev/null
    then passed=$((passed + 1))
    else failures=$((failures + 1)); echo "FAILED: $1: $2"; cat log
    fi
}

for part in transfers opening streams blocks mappings locks threads signals numbers random processes \
    descriptors first_uses; do
    ./exercise "$work/bare.txt" $part >expected 2>err
    check "$part, bare" 0 $? expected expected
    LD_PRELOAD=$library ./exercise "$work/plain.txt" $part >out 2>err
    check "$part, without a manager" 0 $? expected out
    for kind in dat raw txt; do
        managed -- ./exercise "$work/f.$kind" $part >out 2>err
        check "$part, $kind" 0 $? expected out
        [ -s err ] && cat err
    done
done

for part in mappings processes random threads first_uses; do
    ./exercise "$work/bare.txt" $part >expected 2>err
    managed --fault -- ./exercise "$work/f.dat" $part >out 2>err
    check "$part, served by faults" 0 $? expected out
    [ -s err ] && cat err
done
./exercise "$work/f.txt" streams >/dev/null
managed -- ./exercise "$work/f.dat" streams >/dev/null
check "a stream that exit flushes" 0 $? f.txt f.dat
managed -- ./exercise "$work/f.dat" transfers mappings streams >/dev/null
logged "requests of a managed run" "n['read'] > 50 and n['change_begin'] == n['change_end'] > 25 \
and n['map_commit'] > 5 and n['userfault'] == n['probe'] == 1 and n['sync'] > 1 and n['flush'] > 4 \
and n.get('raw_word', 0) == 0 and not log['notes']"
managed -- ./exercise "$work/f.raw" transfers mappings streams >/dev/null
logged "an inactive file is read and written by the kernel" \
    "n.get('read', 0) == n.get('change_begin', 0) == 0 and n['raw_word'] == 1"
managed -- ./exercise "$work/f.txt" transfers mappings streams >/dev/null
logged "another file is only asked about" "set(n) <= {'hello', 'hello_forked', 'opened', 'flush'}"
managed -- ./exercise "$work/f.dat" block >/dev/null
logged "a large block of a stream is read by one message" "n['read'] <= 3"
for i in {0..99}; do echo "$i, of a hundred" >"h.$i.dat"; done
# Descriptors that a program inherits are shown at its start, if they are files.
managed -- ./exercise "$work/h" many </dev/null >/dev/null 2>/dev/null
check "many small files" 0 $? /dev/null /dev/null
logged "a file that is read whole takes one message, one that is not used none" \
    "n == {'hello': 1, 'hello_forked': 0, 'opened': 50}"
managed -- ./exercise "$work/f.dat" processes >/dev/null
logged "children" "n['hello_forked'] >= 3 and n['await_dead'] >= 1 and len(log['executed']) >= 7 \
and '/nonexistent/x' not in log['executed']"

# Programs that others wrote.
printf 'one\ntwo\nthree\n' >words
cp words words.dat
./exercise - standard <words >expected
managed -- sh -c "./exercise - standard <words.dat >out.dat"
check "standard streams" 0 $? expected out.dat
cat >shell.sh <<'SCRIPT'
out=$1
for i in 1 2 3; do echo "line $i" >>$out; done
( echo inner; echo inner >&2 ) >>$out 2>>$out
sed 's/line/LINE/' <$out | sort -r | tee $out.copy | wc -l
cat $out; cp $out $out.second; cmp $out $out.second; head -c 3 $out; : >$out; wc -c <$out
dd if=$out.second of=$out bs=7 conv=notrunc 2>/dev/null; mv $out.second $out; cat $out
SCRIPT
bash shell.sh "$work/s.txt" >expected 2>&1
managed -- bash shell.sh "$work/s.dat" 2>&1 | sed 's/\.dat/.txt/g' >out
check "shell" 0 "${PIPESTATUS[0]}" expected out
cat >script.py <<'SCRIPT'
import fcntl, mmap, os, subprocess, sys, threading
path = sys.argv[1]
with open(path, "wb") as f:
    f.write(bytes(range(256)) * 400)
with open(path, "r+b") as f:
    m = mmap.mmap(f.fileno(), 0)
    m[5000:5005] = b"hello"
    f.seek(5000)
    print(f.read(5), len(m), m.find(b"hello"))
    f.seek(0); f.write(b"WRITE"); f.flush()
    print(m[:6]); m.flush(); m.resize(50000); print(os.fstat(f.fileno()).st_size)
    print(subprocess.run(["wc", "-c", path], capture_output=True).stdout.split()[0])
    print(subprocess.run(["head", "-c", "5"], stdin=open(path), capture_output=True).stdout)
    pid = os.fork()
    if pid == 0:
        m[1] = 65
        os._exit(m[5000])
    print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), m[:3])
    m.close()
    os.posix_fallocate(f.fileno(), 0, 60000)
    os.truncate(path, 55000)
    print(os.path.getsize(path), os.pread(f.fileno(), 5, 4999))
with open(path, "a") as f:
    f.write("tail")
print(open(path, "rb").read()[-4:])
SCRIPT
python3 script.py "$work/p.txt" >expected 2>err
managed -- python3 script.py "$work/p.dat" >out
check "python" 0 $? expected out
logged "python was managed" "n['map_commit'] >= 1 and n['read'] >= 3"
if command -v sqlite3 >/dev/null; then
    cat >script.sql <<'SQL'
PRAGMA mmap_size=100000000;
CREATE TABLE t(a INTEGER PRIMARY KEY, b TEXT);
WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i+1 FROM n WHERE i<3000)
INSERT INTO t SELECT i, hex(i*i)||printf('%0100d', i) FROM n;
SELECT count(*), sum(length(b)), max(b) FROM t;
UPDATE t SET b=a||b WHERE a%3=0; DELETE FROM t WHERE a%5=0; VACUUM;
SELECT count(*), sum(length(b)), min(b) FROM t; PRAGMA integrity_check;
SQL
    sqlite3 q.db <script.sql >expected
    managed -- sqlite3 "$work/q.dat" <script.sql >out
    check "sqlite3" 0 $? expected out
    logged "sqlite3 was managed" "n['map_commit'] >= 1"
fi

# Switched off, refused, gone.
PAGEKEEPER_DISABLE=1 managed -- ./exercise "$work/f.dat" transfers >out 2>err
logged "switched off" "not n"
./exercise "$work/bare.txt" transfers >expected
LD_PRELOAD=$library PAGEKEEPER_SOCKET=nobody-listens:0123456789abcdef0123456789abcdef \
    ./exercise "$work/f.dat" transfers >out 2>err
check "a manager that is not there" 0 $? expected out
LD_PRELOAD=$library PAGEKEEPER_SOCKET=garbage ./exercise "$work/f.dat" transfers >out 2>err
check "a socket that is none" 0 $? expected out
for op in opened raw_word note; do
    managed --refuse $op -- ./exercise "$work/f.raw" transfers >out 2>err
    check "refusing $op" 0 $? expected out
done
cat >map.py <<'SCRIPT'
import mmap, os, sys
fd = os.open(sys.argv[1], os.O_RDWR)
try:
    print(len(mmap.mmap(fd, 0)))
except OSError as error:
    print(error)
print(os.pread(fd, 3, 0))
SCRIPT
printf "[Errno 12] Cannot allocate memory\nb'one'\n" >expected
for op in probe userfault map_prepare map_commit; do
    managed --refuse $op -- python3 map.py "$work/words.dat" >out 2>err
    check "mapping, refusing $op" 0 $? expected out
done
for n in 1 2 3 4 5 6 7 8 9 12 15 20 30 40 60; do
    managed --die-after $n -- ./exercise "$work/f.dat" mappings >out 2>err
    code=$?
    if [ $code = 70 ] && grep -q "manager process is gone" err || [ $code = 0 ]; then
        passed=$((passed + 1))
    else
        failures=$((failures + 1)); echo "FAILED: manager gone after $n requests: exit code $code"
        cat err
    fi
done

echo "$passed passed, $failures failed"
[ $failures = 0 ]

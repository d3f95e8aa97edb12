//! Unmodified programs and their own test suites, with every file that they touch managed and far
//! too little memory: same output, same exit code, same files.

use crate::runs::{self, Budget, LIMIT, Scratch, command, finish, has, python, same};
use std::path::{Path, PathBuf};
use std::time::Duration;

// ---- test suites of others -----------------------------------------------------------------------

#[test]
fn numpys_test_of_memmap_passes() {
    if !runs::ready() {
        return;
    }
    let place = Scratch::new("numpy");
    let script = "import numpy._core.tests.test_memmap as t; print(t.__file__)";
    let found = std::process::Command::new(python()).args(["-c", script]).output();
    let Some(found) = found.ok().filter(|f| f.status.success()) else {
        return runs::skip("there is no python with numpy (PAGEKEEPER_TEST_PYTHON)");
    };
    let file = String::from_utf8(found.stdout).unwrap().trim().to_owned();
    // Every file of the interpreter too.
    for (budget, policy) in [(64, "lru"), (256, "clock"), (1024, "mru")] {
        let budget = Budget::kib(budget).policy(policy).files("*");
        let mut command = command(&place, Some(&budget), python());
        command.args(["-m", "pytest", "-q", "-p", "no:cacheprovider", &file]);
        command.env("TMPDIR", place.path()).env("PYTHONDONTWRITEBYTECODE", "1");
        let done = finish(&place, &mut command, b"", LIMIT * 2).ok().pressed();
        assert!(done.text().contains(" passed") && !done.text().contains("failed"));
        eprintln!("{}", done.text().lines().last().unwrap_or_default());
    }
}

/// Interpreters that may have their own tests with them.
fn pythons_with_tests() -> Vec<PathBuf> {
    let mut found: Vec<PathBuf> =
        ["/usr/bin/python3", "/usr/local/bin/python3"].map(PathBuf::from).into();
    let home = std::env::var_os("HOME").unwrap_or_default();
    let versions = std::fs::read_dir(Path::new(&home).join(".pyenv/versions"));
    found.extend(versions.into_iter().flatten().flatten().map(|v| v.path().join("bin/python3")));
    found.push(python());
    found.retain(|python| {
        let mut check = std::process::Command::new(python);
        check.args(["-c", "import test.test_mmap, sys; sys.exit(sys.version_info < (3, 8))"]);
        check.output().is_ok_and(|o| o.status.success())
    });
    found
}

#[test]
fn cpythons_test_of_mmap_passes() {
    if !runs::ready() {
        return;
    }
    let pythons = pythons_with_tests();
    if pythons.is_empty() {
        return runs::skip("no python here has its test_mmap (Debian: libpython3-testsuite)");
    }
    for (python, policy) in
        pythons.iter().zip(["lru", "clock", "fifo2", "mru", "random"].iter().cycle())
    {
        let place = Scratch::new("cpython");
        let run = |budget: Option<&Budget>| {
            let mut command = command(&place, budget, python);
            command.args(["-m", "unittest", "test.test_mmap"]).env("TMPDIR", place.path());
            finish(&place, &mut command, b"", LIMIT)
        };
        let bare = run(None);
        if !bare.status.success() {
            runs::skip(&format!("{}: fails without us", python.display()));
            continue;
        }
        let done = run(Some(&Budget::kib(64).policy(policy))).ok().pressed();
        let ran = |text: &str| {
            text.lines()
                .find(|l| l.starts_with("Ran "))
                .map(|l| l[..l.find(" in ").unwrap()].to_owned())
        };
        assert_eq!(ran(&bare.stderr), ran(&done.stderr));
        eprintln!("{}: {:?}", python.display(), ran(&done.stderr));
    }
}

// ---- SQLite --------------------------------------------------------------------------------------

fn sql(journal: &str) -> String {
    format!(
        "PRAGMA mmap_size=268435456; PRAGMA journal_mode={journal}; PRAGMA cache_size=50;
CREATE TABLE t(id INTEGER PRIMARY KEY, k INT, v TEXT);
WITH RECURSIVE c(x) AS (SELECT 1 UNION ALL SELECT x+1 FROM c WHERE x<12000)
  INSERT INTO t SELECT x, (x*7919)%10007, printf('%0100d',x) FROM c;
CREATE INDEX ti ON t(k);
UPDATE t SET v=v||'u' WHERE id%3=0;
DELETE FROM t WHERE id%5=0;
PRAGMA integrity_check;
SELECT count(*),sum(k),sum(length(v)) FROM t;
VACUUM;
PRAGMA integrity_check;
BEGIN; UPDATE t SET k=k+1; ROLLBACK;
INSERT INTO t SELECT id+100000,k,v FROM t;
SELECT a.k,count(*) FROM t a JOIN t b ON a.k=b.k GROUP BY a.k ORDER BY 2 DESC,1 LIMIT 5;
PRAGMA integrity_check;
SELECT count(*),sum(k),sum(length(v)) FROM t;
"
    )
}

#[test]
fn sqlite_keeps_its_database_whole_in_every_journal_mode() {
    if !runs::ready() || !has("sqlite3") {
        return;
    }
    for (journal, policy) in
        [("wal", "lru"), ("delete", "clock"), ("truncate", "mru"), ("persist", "fifo2")]
    {
        let budget = Budget::kib(512).policy(policy);
        let script = sql(journal);
        let prepare = |place: &Scratch| drop(place.put("script.sql", &script));
        let arguments = [
            "-c",
            "sqlite3 shop.db < script.sql && sqlite3 shop.db 'PRAGMA integrity_check'; rm -f shop.db-journal",
        ];
        let done = same("sqlite", &budget, "sh", &arguments, prepare).ok().pressed();
        assert_eq!(done.text().matches("ok\n").count(), 4, "{}", done.text());
    }
}

/// Two processes on one database that wait for each other's locks. Row counts must be exact.
#[test]
fn two_sqlite_processes_share_a_database() {
    if !runs::ready() || !has("sqlite3") {
        return;
    }
    for (journal, policy) in [("wal", "lru"), ("delete", "clock")] {
        let place = Scratch::new("two-sqlite");
        let mut script = String::from(".timeout 20000\nPRAGMA mmap_size=268435456;\n");
        for i in 0..40 {
            script += &format!(
                "BEGIN IMMEDIATE;
WITH RECURSIVE c(x) AS (SELECT 1 UNION ALL SELECT x+1 FROM c WHERE x<50)
  INSERT INTO t(who,n,v) SELECT @WHO, {i}*50+x, printf('%0200d',x) FROM c;
UPDATE total SET n=n+50;
COMMIT;
SELECT CASE WHEN (SELECT n FROM total)=(SELECT count(*) FROM t) THEN 'equal' ELSE 'differ' END;
"
            );
        }
        for who in ["1", "2"] {
            place.put(&format!("{who}.sql"), script.replace("@WHO", who));
        }
        let create = format!(
            "sqlite3 shop.db 'PRAGMA journal_mode={journal}; CREATE TABLE total(n INT); INSERT INTO \
             total VALUES(0); CREATE TABLE t(who INT, n INT, v TEXT); CREATE INDEX ti ON t(who,n)' && \
             (sqlite3 shop.db < 1.sql > /dev/shm/live-$$.1 & a=$!; sqlite3 shop.db < 2.sql > \
             /dev/shm/live-$$.2 & b=$!; wait $a || exit 3; wait $b || exit 4; cat /dev/shm/live-$$.*; \
             rm /dev/shm/live-$$.*) && sqlite3 shop.db 'PRAGMA integrity_check; SELECT count(*), \
             (SELECT n FROM total), count(DISTINCT who*10000+n) FROM t'"
        );
        let mut command = command(&place, Some(&Budget::kib(256).policy(policy)), "sh");
        command.args(["-c", &create]);
        let done = finish(&place, &mut command, b"", LIMIT).ok().pressed();
        let text = done.text();
        assert_eq!(text.matches("equal\n").count(), 80, "{text}");
        assert!(text.ends_with("ok\n4000|4000|4000\n"), "{text}");
    }
}

// ---- tools ---------------------------------------------------------------------------------------

/// Files of every size, made without any tool under test.
fn prepare(place: &Scratch) {
    let numbers: String = (0..40_000u64).map(|i| format!("{}\n", i * 7919 % 100_003)).collect();
    place.put("numbers", numbers);
    let noise: Vec<u8> = (0..700_001u64).map(|i| (i * i / 7 + (i >> 9)) as u8).collect();
    place.put("noise", noise);
    place.put("one", "x");
    place.put("empty", "");
}

fn shell(name: &str, budget: Budget, programs: &[&str], script: &str) {
    if !runs::ready() || !programs.iter().all(|p| has(p)) {
        return;
    }
    let script = format!("set -e\nexport LC_ALL=C\n{script}");
    same(name, &budget, "sh", &["-c", &script], prepare).ok().pressed();
}

#[test]
fn files_are_copied_and_compared() {
    shell(
        "copy",
        Budget::kib(128),
        &["cp", "cat", "dd", "cmp", "tail", "head"],
        "cp numbers copy; cmp numbers copy; cat copy noise numbers > all
dd if=all of=blocks bs=7001 2>/dev/null; cmp all blocks
dd if=noise of=blocks bs=1000 seek=77 count=300 conv=notrunc 2>/dev/null
dd if=/dev/zero of=sparse bs=1 count=1 seek=3000000 2>/dev/null
cp --sparse=always sparse thin; cp --reflink=never all again; cmp all again
cmp all blocks || echo differ; cmp -n 77000 all blocks
tail -c 100 numbers; tail -n 3 numbers; tail -c +699000 noise | cksum; head -c 12345 noise | cksum
head -n 2 numbers; cksum all blocks sparse thin; wc all numbers one empty
cat < numbers >> copy; cat one >> copy; cksum copy; rm again; mv copy renamed; cksum renamed
truncate -s 5000 renamed; cksum renamed; truncate -s 9000 renamed; cksum renamed
ln numbers linked; echo more >> linked; tail -n 2 numbers; stat -c '%s %h' numbers",
    );
}

#[test]
fn text_is_searched_sorted_and_edited() {
    shell(
        "text",
        Budget::kib(192).policy("lru"),
        &["grep", "sort", "sed", "awk", "perl", "split", "comm", "diff"],
        "grep -c 77 numbers; grep -n '^99' numbers | tail -n 2; grep -c . noise || true
sort -n numbers > sorted; sort -rn -S 100K numbers | head -n 3; sort -u -o numbers.unique numbers
sort -c sorted -n && echo in order; sed -n '100,105p' sorted; sed -i 's/7/seven/' sorted
cksum sorted; awk '{s+=$1} END {print s}' numbers; split -l 9000 numbers part; cat part* | cmp - numbers
sort numbers > a; sort -r numbers > b; sort b | comm -3 a - | wc -l; diff a b > patch || true; cksum patch
perl -ne 'print if $. % 5000 == 0' numbers; perl -pi -e 's/1/one/' b; cksum b
perl -e 'open F, \"+<\", \"a\" or die; seek F, 1000, 0; print F \"PERL\"; seek F, 998, 0; read F, $x, 8; \
$x =~ s/\\n/./g; print \"$x\\n\"; close F; truncate \"a\", 2000; print -s \"a\", \"\\n\"'; cksum a
tac numbers | tac | cmp - numbers; od -A d -t x1 one; uniq -c one; paste one one; cut -c 1 a | sort -u",
    );
}

#[test]
fn files_are_packed_and_hashed() {
    shell(
        "pack",
        Budget::kib(128).policy("fifo2"),
        &["gzip", "sha256sum", "tar", "md5sum"],
        "sha256sum noise numbers empty > sums; sha256sum -c sums; md5sum noise
gzip -nk noise numbers; gzip -t noise.gz; gunzip -c noise.gz | cmp - noise; rm noise; gunzip noise.gz
sha256sum -c sums; tar --mtime=@0 --owner=0 --group=0 -cf all.tar noise numbers empty one
rm noise numbers; tar -xf all.tar; sha256sum -c sums; tar -tf all.tar; tar -df all.tar
touch -d @0 *; rm all.tar numbers.gz; gzip -n numbers; sha256sum *.gz",
    );
}

#[test]
fn python_maps_resizes_forks_and_shares() {
    if !runs::ready() {
        return;
    }
    if !python().is_file() {
        return runs::skip("there is no python (PAGEKEEPER_TEST_PYTHON)");
    }
    let script = r#"
import hashlib, mmap, multiprocessing, os, random, shutil, sys
import numpy as np

r = random.Random(5)
with open('grow', 'w+b') as f:
    f.truncate(4096)
    m = mmap.mmap(f.fileno(), 4096)
    for step in range(60):
        m.resize((step + 2) * 4096)
        m[step * 4096:step * 4096 + 8] = b'%8d' % step
        for _ in range(10):
            k = r.randrange(step + 1)
            assert m[k * 4096:k * 4096 + 8] == b'%8d' % k
    m.resize(10 * 4096 + 5)
    assert os.fstat(f.fileno()).st_size == 10 * 4096 + 5
    assert m.find(b'9') >= 0 and m.rfind(b'9') < len(m)
    m.move(0, 4096, 3 * 4096)
    m.flush()
    m.close()

a = np.memmap('array', dtype=np.float64, mode='w+', shape=(300, 1000))
a[:] = np.arange(300000).reshape(300, 1000)
for epoch in range(3):
    order = np.random.default_rng(epoch).permutation(300)
    total = sum(float(a[i].sum()) for i in order)
    a += 1
print(total, float(a.mean()))
a.flush()

def work(i):
    b = np.memmap('array', dtype=np.float64, mode='r+', shape=(300, 1000))
    b[i::4] *= -1
    return float(np.abs(b).sum())

with multiprocessing.get_context('fork').Pool(4) as pool:
    print(pool.map(work, range(4)))
print(float(a.sum()), hashlib.md5(a.tobytes()).hexdigest())

def spawned(i):
    return i

c = np.memmap('array', dtype=np.float64, mode='c', shape=(300, 1000))
c[100:200] = 0
print(float(c.sum()) == float(a.sum()))
d = np.fromfile('array')
print(d.shape, float(d.sum()))
np.save('saved.npy', d[:5000])
e = np.load('saved.npy', mmap_mode='r')
print(float(e.sum()))
try:
    e[0] = 1
except ValueError as error:
    print(error)
with open('array', 'rb') as f, open('copy', 'wb') as g:
    shutil.copyfileobj(f, g)
shutil.copyfile('array', 'copy2')
with open('array', 'rb') as f, open('copy3', 'wb') as g:
    n = os.fstat(f.fileno()).st_size
    while n:
        n -= os.sendfile(g.fileno(), f.fileno(), None, n)
with open('array', 'rb') as f, open('copy4', 'wb') as g:
    n = os.fstat(f.fileno()).st_size
    while n:
        n -= os.copy_file_range(f.fileno(), g.fileno(), n)
print([hashlib.md5(open(x, 'rb').read()).hexdigest() for x in ['array', 'copy', 'copy2', 'copy3', 'copy4']])
"#;
    let prepare = |place: &Scratch| drop(place.put("script.py", script));
    let done = same("python", &Budget::kib(512), python(), &["script.py"], prepare);
    done.ok().pressed();
}

/// A program reads by `O_DIRECT` from a file that is not managed into the mapping of one that is:
/// the device writes to pages that were looked up before, and that may have been evicted since.
#[test]
fn direct_reads_into_managed_memory_arrive() {
    if !runs::ready() || !python().is_file() {
        return;
    }
    let script = r#"
import errno, mmap, os, sys
n = 400
plain = os.open(sys.argv[1], os.O_RDONLY | os.O_DIRECT)
fd = os.open('target', os.O_RDWR | os.O_CREAT)
os.ftruncate(fd, n * 4096)
m = mmap.mmap(fd, n * 4096)
view = memoryview(m)
at = 0
for size in [4096, 1 << 20, 300 * 4096, n * 4096]:
    got = os.preadv(plain, [view[:size]], 0)
    assert got == size, (got, size)
    expected = open(sys.argv[1], 'rb', buffering=0)
    for page in range(size // 4096):
        assert view[page * 4096:page * 4096 + 4096] == expected.read(4096), (size, page)
    for page in range(n):
        m[page * 4096] = 255
assert os.preadv(plain, [view[:0]], 0) == 0
try:
    os.preadv(plain, [view[:4096]], -1 << 40)
    raise AssertionError('an offset before the start')
except OSError as e:
    assert e.errno == errno.EINVAL, e
assert view[0] == 255
print('direct')
"#;
    let other = Scratch::new("direct-source");
    let source =
        other.put("source", (0..400 * 4096u64).map(|i| ((i * i) >> 7) as u8).collect::<Vec<_>>());
    let prepare = |place: &Scratch| drop(place.put("script.py", script));
    let arguments = ["script.py", source.to_str().unwrap()];
    let budget = Budget::kib(256).policy("lru");
    same("direct", &budget, python(), &arguments, prepare).ok().pressed();
}

/// A long pipeline of programs under one run, none of which knows of another.
#[test]
fn a_tree_of_programs_shares_one_budget() {
    if !runs::ready() {
        return;
    }
    let place = Scratch::new("tree");
    prepare(&place);
    let script = "for i in 1 2 3 4 5 6; do (cp numbers n$i; sort -n n$i > s$i; tail -c 5000 s$i | cksum > c$i) & done; wait; cat c* | sort -u | wc -l";
    let mut command = command(&place, Some(&Budget::kib(256)), "sh");
    command.args(["-c", script]);
    let done = finish(&place, &mut command, b"", Duration::from_secs(60)).ok().pressed();
    assert_eq!(done.text().trim(), "1");
}

/// Programs that opened a file in the same moment once had a copy of its pages each, and one's
/// write-back undid what the other had stored.
#[test]
fn programs_that_open_files_together_share_them() {
    if !runs::ready() {
        return;
    }
    let place = Scratch::new("together");
    for i in 0..200 {
        place.put(&format!("t{i}"), vec![0u8; 4096]);
    }
    let mut command = command(&place, Some(&Budget::kib(1024)), runs::programs());
    let done = finish(&place, command.args(["together", "."]), b"", LIMIT).ok();
    assert_eq!(done.text(), "together\n");
    assert_eq!(done.managed_files(), 200);
}

/// `rev` and `column`, whose characters are wide, got SIGSEGV, or wrote nothing, when their output was
/// a file; and each piece that a shell told its standard error, by lines, was a write of its own.
#[test]
fn streams_are_wide_and_buffered_as_libcs_own() {
    if !runs::ready() {
        return;
    }
    let streams = runs::compiled("streams.c", &[], "streams");
    let script = format!("{} <in >out 2>err; echo $?", streams.display());
    let prepare = |place: &Scratch| drop(place.put("in", "ein\nd\u{f6}rfer\nende"));
    // Smaller than what is managed, too: nobody knows what becomes of a file that is opened.
    for min_size_bytes in [1, 1 << 20] {
        let budget = Budget { min_size_bytes, ..Budget::kib(64) };
        let done = same("streams", &budget, "sh", &["-c", &script], prepare).ok();
        assert_eq!(done.text(), "0\n");
    }
}

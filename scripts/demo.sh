#!/usr/bin/env bash
# Two unmodified programs whose data does not fit in the memory they are given: a nested-loop join
# in sqlite3, and training-like epochs over a numpy.memmap. `pagekeeper tune` records each once,
# predicts what every policy would do, and runs it under the best.
set -euo pipefail
cd "$(dirname "$0")/.."
pagekeeper=$PWD/target/release/pagekeeper
data=${PAGEKEEPER_DEMO_DATA:-$PWD/target/demo}
mkdir -p "$data"
programs=$PWD/bench/src/suite # measured there, too

MEMORY=48M

if [ ! -f "$data/shop.db" ]; then
    echo "Building a SQLite database of about 190 MB (four times the memory given) ..."
    rm -f "$data/shop.db.tmp"
    .venv/bin/python "$programs/shop.py" "$data/shop.db.tmp"
    mv "$data/shop.db.tmp" "$data/shop.db"
fi
JOIN="PRAGMA mmap_size=1073741824; PRAGMA cache_size=16; PRAGMA automatic_index=off;
SELECT r.currency, count(*), sum(o.amount * r.rate) FROM rates r CROSS JOIN orders o
WHERE o.currency = r.currency GROUP BY r.currency;"

if [ ! -f "$data/samples.npy" ]; then
    echo "Building 60 MB of training samples ..."
    .venv/bin/python - "$data/samples.npy" <<'PY'
import sys
import numpy as np

rows = np.lib.format.open_memmap(sys.argv[1] + ".tmp", "w+", np.float32, (240_000, 64))
rng = np.random.default_rng(7)
for start in range(0, len(rows), 8000):
    rows[start : start + 8000] = rng.random((8000, 64), dtype=np.float32)
rows.flush()
PY
    mv "$data/samples.npy.tmp" "$data/samples.npy"
fi
echo
echo "=== 1. sqlite3: a nested-loop join over $(du -h "$data/shop.db" | cut -f1), in $MEMORY of memory"
plain=$(sqlite3 "$data/shop.db" "$JOIN")
"$pagekeeper" tune --memory "$MEMORY" --files '*.db' -- sqlite3 "$data/shop.db" "$JOIN" | tee "$data/sqlite.out"
grep -qF "$(tail -1 <<<"$plain")" "$data/sqlite.out" || { echo "demo: the answers differ" >&2; exit 1; }

echo
echo "=== 2. python3: six epochs over a numpy.memmap of $(du -h "$data/samples.npy" | cut -f1), in $MEMORY of memory"
plain=$(.venv/bin/python "$programs/epochs.py" "$data/samples.npy")
"$pagekeeper" tune --memory "$MEMORY" --files '*.npy' -- \
    .venv/bin/python "$programs/epochs.py" "$data/samples.npy" | tee "$data/numpy.out"
grep -qF "$plain" "$data/numpy.out" || { echo "demo: the answers differ" >&2; exit 1; }
echo
echo "Both programs gave the same answers as without Pagekeeper."

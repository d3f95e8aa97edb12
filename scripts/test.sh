#!/usr/bin/env bash
# All tests. Live tests need a full userfaultfd; where this machine denies it they are skipped and
# say why.
set -euo pipefail
cd "$(dirname "$0")/.."
export PATH="$HOME/.cargo/bin:$PATH"

export PAGEKEEPER_BIN="$PWD/target/release/pagekeeper"
export PAGEKEEPER_PRELOAD="$PWD/target/release/libpagekeeper_preload.so"
export PAGEKEEPER_TEST_PYTHON="$PWD/.venv/bin/python"

"$PAGEKEEPER_BIN" doctor || true
cargo test --release --workspace --exclude pagekeeper-preload --no-fail-fast
crates/preload/tests/run.sh

#!/usr/bin/env bash
# All tests. Live tests need a full userfaultfd; where this machine denies it they are skipped and
# say why.
set -euo pipefail
cd "$(dirname "$0")/.."
export PATH="$HOME/.cargo/bin:$PATH"

export PAGEKEEPER_BIN="$PWD/target/release/pagekeeper"
export PAGEKEEPER_PRELOAD="$PWD/target/release/libpagekeeper_preload.so"
export PAGEKEEPER_TEST_PYTHON="$PWD/.venv/bin/python"

install() { # PACKAGE, and what is skipped without it
    [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null || return 0
    apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq "$1" >/dev/null ||
        echo "test: no $1 to be had; $2 skipped" >&2
}
# Reports are looked at in a browser, where there is one or it can be had.
command -v chromium >/dev/null || install chromium "the test of reports in a browser is"
compgen -G '/usr/lib*/*/libjemalloc.so.2' >/dev/null ||
    install libjemalloc2 "tests of programs that bring jemalloc are"

# Tests that run programs wait for storage and timers: one more than there are processors keeps those busy.
export RUST_TEST_THREADS="${RUST_TEST_THREADS:-$(($(nproc) + 1))}"
# With the tests, the command.
cargo test --release --workspace --exclude pagekeeper-preload --no-run
"$PAGEKEEPER_BIN" doctor || true
cargo test --release --workspace --exclude pagekeeper-preload --no-fail-fast
crates/preload/tests/run.sh

#!/usr/bin/env bash
# Formatting, lints and documentation, without warnings; links between documents.
set -euo pipefail
cd "$(dirname "$0")/.."
export PATH="$HOME/.cargo/bin:$PATH"
python3 scripts/links.py
cargo fmt --all --check
# In the profile of the tests, so that what dependencies build and run is built once.
cargo clippy --release --workspace --exclude pagekeeper-preload --all-targets -- -D warnings
cargo clippy --profile preload -p pagekeeper-preload -- -D warnings
cargo fmt --manifest-path bench/Cargo.toml --check
CARGO_TARGET_DIR="$PWD/target" cargo clippy --release --manifest-path bench/Cargo.toml --all-targets -- -D warnings
# One after the other: the library and the command have the same name, and documentation in the same
# place, which each makes anew.
RUSTDOCFLAGS="-D warnings" cargo doc --release --no-deps --quiet --bins
RUSTDOCFLAGS="-D warnings" cargo doc --release --no-deps --quiet --lib

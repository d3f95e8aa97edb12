#!/usr/bin/env bash
# Formatting, lints and documentation, without warnings.
set -euo pipefail
cd "$(dirname "$0")/.."
export PATH="$HOME/.cargo/bin:$PATH"
cargo fmt --all --check
cargo clippy --all-targets -- -D warnings
cargo clippy --profile preload -p pagekeeper-preload -- -D warnings
cargo fmt --manifest-path fuzz/Cargo.toml --check
cargo fmt --manifest-path bench/Cargo.toml --check
cargo clippy --manifest-path fuzz/Cargo.toml --target-dir target --tests --examples -- -D warnings
# One after the other: the library and the command have the same name, and documentation in the same
# place, which each makes anew.
RUSTDOCFLAGS="-D warnings" cargo doc --no-deps --quiet --bins
RUSTDOCFLAGS="-D warnings" cargo doc --no-deps --quiet --lib

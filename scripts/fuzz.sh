#!/usr/bin/env bash
# Runs fuzz targets one after the other: all of them, or those named. FUZZ_SECONDS for each, 1800
# unless set. What they learnt stays in fuzz/corpus, inputs that broke something in fuzz/artifacts.
set -euo pipefail
cd "$(dirname "$0")/.."
export PATH="$HOME/.cargo/bin:$PATH"

seconds=${FUZZ_SECONDS:-1800}
targets=("$@")
[ ${#targets[@]} -gt 0 ] || targets=(binary assembler source execution trace policy_spec)

cargo +nightly --version >/dev/null 2>&1 || rustup toolchain install nightly --profile minimal
cargo fuzz --version >/dev/null 2>&1 || cargo install cargo-fuzz --locked

# Inputs near the seeds, where an overflow is found: the tests' own builds are optimized.
cargo test --quiet -p pagekeeper-fuzz

for target in "${targets[@]}"; do
    seeds=target/fuzz-seeds/$target
    cargo run --quiet --release -p pagekeeper-fuzz --example seeds -- "$seeds" "$target"
    mkdir -p "fuzz/corpus/$target" "fuzz/regressions/$target"
    dictionary=()
    [ -f "fuzz/dictionaries/$target.dict" ] && dictionary=(-dict="fuzz/dictionaries/$target.dict")
    # Nothing here is unsafe but zstd and compiled programs: without the address sanitizer the
    # same minutes run several times as many inputs. FUZZ_SANITIZER=address is for those.
    cargo +nightly fuzz run --sanitizer "${FUZZ_SANITIZER:-none}" --features libfuzzer \
        --target-dir target/fuzz "$target" \
        "fuzz/corpus/$target" "$seeds" "fuzz/regressions/$target" -- \
        -max_total_time="$seconds" -max_len=8192 -len_control=0 -timeout=300 \
        -rss_limit_mb=4096 -print_final_stats=1 "${dictionary[@]}"
done

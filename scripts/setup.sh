#!/usr/bin/env bash
# Installs what building, testing and the demo need, where it is missing. Safe to run again.
set -euo pipefail
cd "$(dirname "$0")/.."
export PATH="$HOME/.cargo/bin:$PATH"

RUST_MIN=1.95

sudo_if_needed() { if [ "$(id -u)" = 0 ]; then "$@"; else sudo "$@"; fi; }

packages=()
command -v cc >/dev/null || packages+=(build-essential)
command -v pkg-config >/dev/null || packages+=(pkg-config)
command -v sqlite3 >/dev/null || packages+=(sqlite3)
command -v python3 >/dev/null || packages+=(python3)
python3 -c 'import venv, ensurepip' 2>/dev/null || packages+=(python3-venv)
command -v curl >/dev/null || command -v cargo >/dev/null || packages+=(curl ca-certificates)
if [ ${#packages[@]} -gt 0 ]; then
    command -v apt-get >/dev/null || {
        echo "setup: please install: ${packages[*]} (no apt-get here)" >&2
        exit 1
    }
    echo "setup: installing ${packages[*]}"
    sudo_if_needed apt-get update -qq
    sudo_if_needed env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq "${packages[@]}" >/dev/null
fi

rust_is_new_enough() {
    command -v cargo >/dev/null || return 1
    local have
    have=$(rustc --version | awk '{print $2}')
    [ "$(printf '%s\n' "$RUST_MIN" "$have" | sort -V | head -1)" = "$RUST_MIN" ]
}
if ! rust_is_new_enough; then
    if command -v rustup >/dev/null; then
        echo "setup: updating the Rust toolchain"
        rustup toolchain install stable --profile minimal -c clippy -c rustfmt
    else
        echo "setup: installing a Rust toolchain with rustup"
        curl --proto '=https' --tlsv1.2 -sSf https://sh.rustup.rs |
            sh -s -- -y --profile minimal -c clippy -c rustfmt
    fi
fi

if [ ! -x .venv/bin/python ] || ! .venv/bin/python -c 'import numpy, pytest' 2>/dev/null; then
    echo "setup: making .venv with numpy"
    python3 -m venv .venv
    .venv/bin/pip install --quiet --disable-pip-version-check 'numpy>=2,<3' pytest hypothesis
fi

#!/usr/bin/env bash
# Fetches and builds the peers that `pagekeeper-bench peers` measures, into target/peers. They are
# nobody's dependency.
set -euo pipefail
cd "$(dirname "$0")"
here=$PWD
into=../../target/peers
mkdir -p "$into"
cd "$into"

command -v cmake >/dev/null && [ -e /usr/include/libaio.h ] ||
    { apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq cmake libaio-dev; }

# fetch FOLDER URL COMMIT
fetch() {
    [ "$(git -C "$1" rev-parse HEAD 2>/dev/null)" = "$3" ] && return
    rm -rf "$1"
    git init -q "$1"
    git -C "$1" fetch -q --depth 1 "$2" "$3"
    git -C "$1" checkout -q FETCH_HEAD
}
fetch vmcache https://github.com/viktorleis/vmcache 1157828d79a193a17c6bfd88b035cb10927e4360
fetch umap https://github.com/LLNL/umap ebc5a660d3356173a2c10affa767bcd4b455906b

# As its own Makefile builds it.
g++ -DNDEBUG -O3 -std=c++20 -g -fnon-call-exceptions -fasynchronous-unwind-tables -w \
    -Ivmcache -I"$here" "$here/touch-vmcache.cpp" -o touch-vmcache -laio -pthread
cmake -S umap -B umap/build -DCMAKE_BUILD_TYPE=Release -DENABLE_TESTS=Off -DENABLE_LOGGING=Off \
    -DCMAKE_POLICY_VERSION_MINIMUM=3.5 >/dev/null
cmake --build umap/build --parallel 2 >/dev/null
g++ -O3 -std=c++17 -Iumap/src -Iumap/build/src -I"$here" "$here/touch-umap.cpp" \
    -o touch-umap "$(find umap/build -name 'libumap*.a' | head -1)" -pthread -ldl
echo "built: $(ls -1 touch-* | tr '\n' ' ')"

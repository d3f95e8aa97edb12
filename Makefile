# `make demo` and `make test` bring a fresh Debian-like machine from clone to done.
SHELL := /bin/bash
export PATH := $(HOME)/.cargo/bin:$(PATH)

.PHONY: help setup build preload install demo test stress kernels aarch64 fuzz lint bench bench-library bench-heap bench-predict bench-tables bench-simulator bench-domains bench-hits bench-peers bench-suite bench-live clean

help: ## What there is to make
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*##/\t/' | expand -t 16

setup: ## Install what is needed: a Rust toolchain, a C compiler, sqlite3, python3 with numpy in .venv
	@scripts/setup.sh

build: setup preload ## Build the command and the preload library (target/release)
	cargo build --release

preload: setup
	cargo build --profile preload -p pagekeeper-preload
# Not over the old one, which programs may have mapped.
	mkdir -p target/release
	install -m 755 target/preload/libpagekeeper_preload.so target/release/

install: build ## Install the command and the library for C: PREFIX=/usr/local, LIBDIR, INCLUDEDIR, DESTDIR
	@PREFIX="$(PREFIX)" LIBDIR="$(LIBDIR)" INCLUDEDIR="$(INCLUDEDIR)" DESTDIR="$(DESTDIR)" scripts/install.sh

demo: build ## Run a SQLite join and numpy epochs under `pagekeeper tune`
	@scripts/demo.sh

# The tests' own dependencies turn on features of others, so that a build without them would be a second
# one of nearly everything.
test: setup preload ## All tests: units, properties, and unmodified programs end to end
	@scripts/test.sh

stress: build ## Long tests: fsx, LMDB's, stress-ng, SQLite's, and 10^8 checked writes of our own
	@scripts/stress.sh

kernels: build ## Tests on other kernels: Debian's 6.1 and 6.12, in QEMU (hours without KVM)
	@scripts/kernels.sh

aarch64: ## Tests on AArch64, in QEMU under Debian's kernel (hours: everything is emulated)
	@scripts/aarch64.sh

fuzz: setup ## Fuzz each target for FUZZ_SECONDS (1800); see fuzz/README.md
	@scripts/fuzz.sh

lint: setup ## Formatting, clippy and documentation
	@scripts/lint.sh

bench: build ## Measure against the kernel, interleaved; results on the terminal and in target/bench
	cargo run --release --manifest-path bench/Cargo.toml -- all

bench-hits: build ## Nanoseconds of reads of cached data, ours and the kernel's
	cargo run --release --manifest-path bench/Cargo.toml -- hits

bench-library: build ## The library: hits beside pread and a software lookup, misses beside the kernel's
	cargo run --release --manifest-path bench/Cargo.toml -- library

bench-heap: build ## Working memory that does not fit: a transform, matrices, a hash table, sort; beside swap
	cargo run --release --manifest-path bench/Cargo.toml -- heap

bench-predict: build ## Predicted against measured faults, four workloads, four policies
	cargo run --release --manifest-path bench/Cargo.toml -- predict

bench-tables: build ## Tables II, IV, V and VI of the HiPEC paper
	cargo run --release --manifest-path bench/Cargo.toml -- tables

bench-simulator: build ## The simulator's requests per second, beside libCacheSim's (installed from PyPI)
	test -x .venv-bench/bin/python || python3 -m venv .venv-bench
	.venv-bench/bin/pip install --quiet libcachesim==0.3.5
	cargo run --release --manifest-path bench/Cargo.toml -- simulator --repeats 3

bench-domains: build ## What a decision costs compiled, interpreted, behind system calls, behind messages
	cargo run --release --manifest-path bench/Cargo.toml -- domains

bench-peers: build ## A loop over 4 GiB in 1 GiB and a skewed choice, beside vmcache and UMap (fetched and built)
	bench/peers/build.sh
	cargo run --release --manifest-path bench/Cargo.toml -- peers --repeats 1
	cargo run --release --manifest-path bench/Cargo.toml -- library

bench-suite: build ## Unmodified real programs under `auto` beside the kernel; installs ripgrep, fio, lmdb, usearch
	command -v rg fio >/dev/null || { apt-get update -qq && apt-get install -y -qq ripgrep fio; }
	test -x .venv-bench/bin/python || python3 -m venv .venv-bench
	.venv-bench/bin/pip install --quiet numpy==2.4.6 lmdb==3.0.0 usearch==2.26.6
	cargo run --release --manifest-path bench/Cargo.toml -- suite --repeats 9

bench-live: build ## The UBM paper's programs at the same time, live; installs cscope and glimpse
	command -v cscope >/dev/null && command -v glimpse >/dev/null || \
		{ apt-get update -qq && apt-get install -y -qq cscope glimpse; } || true
	cargo run --release --manifest-path bench/Cargo.toml -- live

clean: ## Remove what was built
	cargo clean
	rm -rf .venv .venv-bench

# Each target does its own set-up on a Debian machine with Rust, and is harmless twice.

CARGO ?= cargo
# `verify` uses shellcheck and cargo-deny if they are installed.
SCRIPTS := .ci/run docs/demo/demo.sh tests/e2e/images/debian-image.sh tests/testkit/ensure-packages.sh tests/fuzz/run.sh cli/debian/prerm

export WARREN_RUN API_PORT DEMO_PORT

.PHONY: help run stop test soak bench deb book verify fix

help: ## Show this list
	@grep -E '^[a-z]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z]+):.*## /\1\t/' | expand -t 10

# Settings: WARREN_RUN=DIRECTORY API_PORT=8080 DEMO_PORT=8088.
run: ## Start a node in the background, with a demo service on http://127.0.0.1:8088
	@docs/demo/demo.sh run

stop: ## Stop the node of `make run` and remove all its data
	@docs/demo/demo.sh stop

# One build makes the tests and the `warren` executable for end-to-end tests; `cargo test` alone builds an
# executable only for integration tests of its own package. The second command then compiles nothing. Here a target
# without tests says `bench = false` beside `test = false`: otherwise its empty test program is linked as a benchmark.
BUILD_TESTS := $(CARGO) build --workspace --all-targets --locked
# Tests on containers and clusters mostly wait for heartbeats, grace periods and back-off: with one test per CPU
# the CPUs are idle half of the time.
TEST_THREADS := $(shell echo $$(($$(nproc) + 4)))
TEST := RUST_TEST_THREADS=$(TEST_THREADS) $(CARGO) test --workspace --locked --no-fail-fast

test: ## Run every test, with small counts (needs root: real containers and networks)
	@tests/testkit/ensure-packages.sh test
	$(BUILD_TESTS)
	$(TEST)

soak: ## Run every test with the large counts, then fuzz (needs a nightly toolchain and a C++ compiler): takes hours
	@tests/testkit/ensure-packages.sh soak
	$(BUILD_TESTS)
	WARREN_SOAK=1 $(TEST)
	tests/fuzz/run.sh 600

bench: ## Run the benchmarks: print the figures and write them as JSON
	@tests/testkit/ensure-packages.sh bench
	$(CARGO) build --release --locked -p warren -p warren-worker -p warren-test-bench
	$(CARGO) run --release --locked -p warren-test-bench

# cargo-deb takes the manual and the completions from the directory of the program, which writes them.
DEB_FILES := $(or $(CARGO_TARGET_DIR),target)/release/deb
deb: ## Build the Debian package of this machine's architecture, in target/debian
	@command -v cargo-deb >/dev/null || $(CARGO) install cargo-deb --locked
	$(CARGO) build --release --locked -p warren --bin warren
	rm -rf $(DEB_FILES) && $(dir $(DEB_FILES))warren man $(DEB_FILES)/man
	for shell in bash zsh fish; do $(dir $(DEB_FILES))warren completion $$shell >$(DEB_FILES)/warren.$$shell || exit 1; done
	$(CARGO) deb --no-build -p warren

book: ## Write the documentation as a book, in target/book (needs mdBook: cargo install mdbook)
	mdbook build docs

verify: ## Check formatting, lints, docs, layering and licences; writes nothing but build output
	$(CARGO) fmt --all --check
	$(CARGO) clippy --workspace --all-targets --locked -- -D warnings
	RUSTDOCFLAGS='-D warnings' $(CARGO) doc --workspace --no-deps --locked
	$(CARGO) test --locked -p warren-test-tidy -- --show-output
	@if command -v cargo-deny >/dev/null; then $(CARGO) deny --locked check; \
	 else echo 'cargo-deny is not installed: advisories and licences were not checked'; fi
	@if command -v shellcheck >/dev/null; then shellcheck $(SCRIPTS); \
	 else echo 'shellcheck is not installed: the scripts were not checked'; fi

fix: ## Format the code and apply the fixes of the lints
	$(CARGO) clippy --workspace --all-targets --locked --fix --allow-dirty --allow-staged
	$(CARGO) fmt --all

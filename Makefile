# Every target works from a fresh clone on Debian with nothing but cargo installed. `make` alone says what there is.

CARGO ?= cargo
FUZZ_SECONDS ?= 20
SIM_RUNS ?= 200000
CHANGE_TESTS ?= cluster_grow cluster_shrink cluster_replace cluster_apply cluster_bad_days cluster_clock cluster_recover ca_rotate corruption_checks cluster_upgrade upgrade_old_entries
PG_TESTS ?= $(patsubst crates/app/cli/tests/%.rs,%,$(wildcard crates/app/cli/tests/pg_*.rs))
FUZZ_TARGETS ?= $(patsubst fuzz/fuzz_targets/%.rs,%,$(wildcard fuzz/fuzz_targets/*.rs))

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.PHONY: help demo demo-stop build man test test-sim test-faults test-clock test-etcd test-postgres check bench fuzz tools compiler cargo

help: ## Say what each target does
	@echo "Quorate: make TARGET"
	@echo
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  \1 \2/p' $(MAKEFILE_LIST) | while read -r name text; do printf '  %-13s %s\n' "$$name" "$$text"; done

demo: cargo ## A declared cluster of three with mutual TLS and backups, kept by three agents; PG=1: with PostgreSQL, and a failover
	@scripts/tools $(if $(PG),demo-pg,demo)
	$(CARGO) build --release --locked --bin quorate
	$(if $(PG),scripts/demo-pg ./target/release/quorate,./target/release/quorate demo)

demo-stop: ## Stop what `make demo` and `make demo PG=1` left running; data is kept
	@scripts/demo-pg ./target/release/quorate stop
	@if [ -e .demo/demo.json ]; then ./target/release/quorate demo stop; fi

build: compiler ## Build the program: target/release/quorate
	$(CARGO) build --release --locked --bin quorate

man: compiler ## Write a manual page for every command: target/man/*.1
	$(CARGO) run --release --locked --bin quorate -- man --dir target/man

test: tools cargo ## Run every test against real servers, and the checks of the source tree itself (tidy)
	$(CARGO) build --workspace --all-targets --locked
	target/debug/xtask test
	target/debug/xtask tidy

test-sim: compiler ## Simulate SIM_RUNS (200000) bootstraps and as many clusters under change, on seeds that no run used before; docs/simulation-result.md
	$(CARGO) build --release --locked --package xtask
	from=$$(($$(date +%s) * 10000)); for kind in "" --living; do target/release/xtask sim --from $$from --seeds $(SIM_RUNS) $$kind; done

test-faults: tools cargo ## Run the same tests with their ranges widened (QUORATE_SWEEP=full: every byte, every crash point); hours
	QUORATE_SWEEP=full $(CARGO) test --profile faults --workspace --locked

test-clock: tools cargo ## Step this machine's own clock by an hour and back below agents, etcd and every change (root; puts it right afterwards)
	QUORATE_CLOCK=machine $(CARGO) test --locked -p quorate-cli --test agent_clock --test cluster_clock --test ca_rotate -- --test-threads=1 clock

test-etcd: tools cargo ## Run the tests of changes with every release of etcd, and those in the directories ETCD_DIR="/opt/etcd-3.6.14 …" (make test: each of them with one or more)
	$(CARGO) build --workspace --all-targets --locked
	for release in 3.4.23 3.5.16 sid $(abspath $(ETCD_DIR)); do QUORATE_TEST_ETCD=$$release target/debug/xtask test $(CHANGE_TESTS); done

test-postgres: tools cargo ## Run the tests of PostgreSQL groups with releases 17 and 16 (make test: 18, and a part of them with the others)
	$(CARGO) build --workspace --all-targets --locked
	for major in 17 16; do QUORATE_TEST_POSTGRES=$$major target/debug/xtask test $(PG_TESTS); done

check: compiler ## Formatting, lints, tidy, licences and banned dependencies; no test
	$(CARGO) fmt --all -- --check
	$(CARGO) clippy --workspace --all-targets --locked -- -D warnings
	$(CARGO) xtask tidy
	@command -v cargo-deny >/dev/null || { echo "check: installing cargo-deny"; $(CARGO) install --locked --debug cargo-deny; }
	$(CARGO) deny --log-level error check bans licenses sources

bench: cargo ## Measure side by side with etcdutl, cp, runc and Patroni; writes the tables of bench/
	@scripts/tools bench
	$(CARGO) build --release --locked --bin quorate
	$(CARGO) run --release --locked --package xtask -- bench

fuzz: tools cargo ## Feed broken files to every reader, FUZZ_SECONDS (20) each, seeded from the fixtures
	@command -v cargo-fuzz >/dev/null || { echo "fuzz: installing cargo-fuzz"; $(CARGO) install --locked cargo-fuzz; }
	$(CARGO) xtask fuzz-seeds
	@for target in $(FUZZ_TARGETS); do \
	  echo "fuzz: $$target for $(FUZZ_SECONDS) s"; \
	  scripts/fuzz "$$target" "$(FUZZ_SECONDS)"; \
	done

tools: ## Install what building and testing need (Debian packages; etcd releases, Consul and an S3 server into .tools/)
	@scripts/tools

compiler: cargo
	@scripts/tools build

cargo:
	@command -v $(CARGO) >/dev/null || { echo "make: cargo is missing: install Rust (see the rust-version in Cargo.toml), then try again" >&2; exit 1; }

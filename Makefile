# Every target works on a fresh Debian 12 with Rust, cargo-nextest, python3 and pip: `make help`.
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
MAKEFLAGS += --no-print-directory

TOOLS := $(CURDIR)/.dev/tools
CHECK_TOOLS := $(CURDIR)/.dev/check-tools
CLIENT_TOOLS := $(CURDIR)/.dev/client-tools
POSTGRES_15 := /usr/lib/postgresql/15/bin
ADVISORIES := $(or $(CARGO_HOME),$(HOME)/.cargo)/advisory-dbs

WITH_SERVERS := cargo run --quiet --locked --package ledger-servers --bin with-servers --
# The packages whose SQL must also run on the oldest Postgres that is supported. A filter, because
# naming packages would compile their dependencies again with fewer features.
SQL_PACKAGES := package(ledger) | package(ledger-migrations) | package(ledger-projections)

.PHONY: help services check-tools client-tools demo check test test-postgres-15 snapshots bench bench-audit

help: ## this list
	@grep -hE '^[a-z0-9-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z0-9-]+):[^#]*## /\1\t/' | sort | \
	    while IFS=$$'\t' read -r target text; do printf '  %-18s %s\n' "$$target" "$$text"; done

services: ## install the Postgres and NATS for development into .dev/tools
	@servers/install.sh servers/requirements.txt $(TOOLS)

check-tools:
	@servers/install.sh servers/requirements-check.txt $(CHECK_TOOLS)

client-tools:
	@servers/install.sh servers/requirements-client.txt $(CLIENT_TOOLS)

demo: services ## the whole loop on this machine: a command queued, run by a real node, proved
	@cli/demo.sh

check: check-tools ## formatting, lints, licences, banned crates, sources
	cargo fmt --all --check
	cargo clippy --quiet --locked --workspace --all-targets -- -D warnings
	@# cargo-deny reads the crates of every platform, also those that this one never compiles.
	@cargo fetch --quiet --locked
	$(CHECK_TOOLS)/bin/cargo-deny --offline --locked check --hide-inclusion-graph bans licenses sources
	@if [ -n "$$(ls -A $(ADVISORIES) 2>/dev/null)" ]; then \
	    $(CHECK_TOOLS)/bin/cargo-deny --offline --locked check advisories; \
	else \
	    echo "advisories: LEFT OUT, there is no advisory database in $(ADVISORIES)"; \
	fi

test: services client-tools check ## check, then every test on real servers, then the SQL again on Postgres 15
	@if grep -rqE '^\s*//[/!] ```(rust|no_run|compile_fail|should_panic)?\s*$$' --include='*.rs' */src; then \
	    $(WITH_SERVERS) cargo test --quiet --locked --workspace --doc; \
	fi
	@# The black-box tests start the binary, which a test run alone does not build; built together
	@# with the tests, both have the same dependencies.
	cargo build --quiet --locked --workspace --bins --tests
	$(WITH_SERVERS) cargo nextest run --locked --workspace
	@if [ -x $(POSTGRES_15)/postgres ]; then \
	    $(MAKE) test-postgres-15; \
	else \
	    echo "Postgres 15: LEFT OUT, there is no $(POSTGRES_15)/postgres (Debian 12: apt-get install postgresql-15)"; \
	fi

test-postgres-15: services ## the tests of the SQL on Debian's Postgres 15
	$(WITH_SERVERS) --postgres-bin $(POSTGRES_15) cargo nextest run --locked --workspace -E '$(SQL_PACKAGES)'

snapshots: services ## write the files again that are made of others and that tests compare
	$(WITH_SERVERS) cargo nextest run --locked --workspace --run-ignored only \
	    -E 'package(ledger-tests) & test(/::writes_the_/)'

bench: services ## measure appends, lifecycles and dispatch on servers of its own; JSON on stdout
	@cargo run --quiet --locked --release --package ledger-cli --bin command-ledger -- bench

bench-audit: services ## measure export and verification of a log, with their memory; JSON on stdout
	@cargo run --quiet --locked --release --package ledger-cli --bin command-ledger -- bench audit

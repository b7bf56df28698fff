# Thin on purpose: every target is a few commands that can be typed by hand.
# Needs make and git; everything else comes with `make deps`.
JOBS ?= $(shell nproc)
EPOCHS ?= 5
PREFIX ?= /usr/local
BIN := build/release/bin
PROGRAMS := paceline-scheduler paceline-server paceline-worker pacelinectl
SOURCES = $(shell git ls-files '*.cc' '*.h')
FILES ?= $(shell git ls-files '*.cc')
SDK_ROOT := build/sdk

.DEFAULT_GOAL := help
.PHONY: help deps build run verify-quickstart test test-release test-sanitizers test-fuzz kill-test restart-test move-test checkpoint-kill-test punish lint format tidy dev bench hold-bench bench-mxnet bench-optimizer sdk install clean

help: ## this list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 18

deps: ## install what is missing (apt; root or sudo)
	@deploy/install-dependencies.sh

build: deps ## the programs, optimised, in build/release/bin
	cmake --preset release
	cmake --build build/release --target $(PROGRAMS) -j $(JOBS)

# Four workers in a group of three and a group of one; the last computes three times slower. Steps
# last at least 10 ms, so that the ratio holds however many cores this machine has.
QUICKSTART = --config configs/quickstart.yaml -- \
  $(BIN)/paceline-worker --model mlp --epochs $(EPOCHS) --step-time-ms 10 --slowdown 1,1,1,3

run: build ## train on this machine: 1 scheduler, 2 servers, 4 workers
	$(BIN)/pacelinectl run $(QUICKSTART)

verify-quickstart: build ## `make run` with seeds 1, 2, 3: at least 0.86 each, recomputed
	/usr/bin/python3 -B tests/cluster/quickstart.py $(BIN)/pacelinectl run $(QUICKSTART)

install: build ## programs and example configurations, below PREFIX (/usr/local)
	cmake --build build/release --target paceline-sim -j $(JOBS)
	cmake --install build/release --component programs --prefix $(PREFIX)

# The programs' own tests come last, so that the end of the output is the whole suite.
test: deps lint test-sanitizers test-fuzz test-release ## all that must hold: what CI runs

test-release: ## every test on what users run
	cmake --preset release
	cmake --build build/release -j $(JOBS)
	ctest --preset release --no-tests=error

test-sanitizers: ## unit tests: address + undefined; those with threads: thread
	cmake --preset asan-ubsan
	cmake --build build/asan-ubsan --target unit_tests -j $(JOBS)
	ctest --preset asan-ubsan -L unit --no-tests=error
	cmake --preset tsan
	cmake --build build/tsan --target concurrent_tests -j $(JOBS)
	ctest --preset tsan -L concurrent --no-tests=error

test-fuzz: ## a short run of each fuzz target
	cmake --preset fuzz
	cmake --build build/fuzz --target fuzzers -j $(JOBS)
	ctest --preset fuzz -L fuzz --no-tests=error

LIFE = cmake --preset release && cmake --build build/release --target $(PROGRAMS) probe_worker firewall -j $(JOBS)
REAL = --bin $(BIN) --probe build/release/tests/life/probe_worker
KILLS ?= 50
MINUTES ?= 20
SEED ?= 1

kill-test: ## kill -9 a worker KILLS times: at random, with a quorum, when its push is decided on, under a launcher
	$(LIFE)
	PACELINE_KILLS=$(KILLS) python3 -B tests/life/kill_test.py $(REAL)
	PACELINE_KILLS=$(KILLS) python3 -B tests/life/failure_test.py $(REAL) known_at_once

restart-test: ## kill and restart the scheduler 20 times in training, five pairs of runs
	$(LIFE)
	PACELINE_RESTARTS=20 PACELINE_PAIRS=5 python3 -B tests/life/failure_test.py $(REAL) Restarts

move-test: ## a server joins and drains three times in training, five pairs of runs
	$(LIFE)
	PACELINE_MOVES=3 PACELINE_PAIRS=5 python3 -B tests/life/moves_test.py $(REAL) Pairs

punish: ## faults of every kind for MINUTES, drawn from SEED; as root also cut links
	$(LIFE)
	/usr/bin/python3 -B tests/punisher/punish.py $(REAL) --minutes $(MINUTES) --seed $(SEED)

CHECKPOINT_KILLS ?= 30

checkpoint-kill-test: ## kill daemons while checkpoints are written, CHECKPOINT_KILLS times
	$(LIFE)
	PACELINE_CHECKPOINT_KILLS=$(CHECKPOINT_KILLS) /usr/bin/python3 -B tests/life/checkpoint_test.py $(REAL) Killed

lint: ## layout and include rules
	@echo clang-format-14 --dry-run --Werror; clang-format-14 --dry-run --Werror $(SOURCES)
	python3 tests/layers_test/layers_test.py --includes-only

format: ## rewrite the sources with clang-format
	@clang-format-14 -i $(SOURCES)

tidy: ## clang-tidy, slowly; FILES=... for some
	cmake --preset dev
	cmake --build build/dev -j $(JOBS)
	clang-tidy-14 -p build/dev --quiet $(FILES)

dev: ## debug build of everything, in build/dev
	cmake --preset dev
	cmake --build build/dev -j $(JOBS)

bench: deps ## benchmarks, in build/release/bench
	cmake --preset release
	cmake --build build/release -j $(JOBS)

HOLD_MB ?= 3072

hold-bench: bench ## how long a checkpoint of HOLD_MB holds a job up (default: 1 GB of weights, twice that of Adam's)
	@to=$$(mktemp -d); build/release/bench/checkpoint_hold_bench $$to $(HOLD_MB); rc=$$?; rm -rf $$to; exit $$rc

# MXNet 1.9.1 is the last release; its wheels want this numpy, and it gets a place of its own.
MXNET_VENV := build/mxnet-venv
CASES ?=
bench-mxnet: build ## ours, MXNet's servers and bare sockets in turn; CASES="25x1M/shm/2w1s ..." for some
	cmake --build build/release --target transfer_bench bare_exchange -j $(JOBS)
	test -x $(MXNET_VENV)/bin/python || python3.11 -m venv $(MXNET_VENV)
	$(MXNET_VENV)/bin/python -m pip install --quiet 'mxnet==1.9.1' 'numpy<1.24'
	python3 bench/compare_mxnet.py --bin build/release \
	  --mxnet-python $(CURDIR)/$(MXNET_VENV)/bin/python $(foreach case,$(CASES),--case $(case))

bench-optimizer: build ## what an optimizer at the server costs, beside sums alone, in turn
	cmake --build build/release --target transfer_bench memory_rate -j $(JOBS)
	python3 bench/optimizer_cost.py --bin build/release $(foreach case,$(CASES),--case $(case))

sdk: ## install programs, libraries and headers into build/sdk
	cmake --preset release
	cmake --build build/release -j $(JOBS)
	cmake --install build/release --prefix $(SDK_ROOT)

clean: ## remove build/; what runs wrote stays
	rm -rf build

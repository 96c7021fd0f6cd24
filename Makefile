# Each target makes what it needs first: a virtual environment in .venv, then the package in it.
#   make demo                        train the default agent on built-in tasks, and write the report
#   make test PYTEST_ARGS="-k cli"   arguments go on to pytest
#   make demo PYTHON=python3.12      another interpreter (3.11 or later)

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:

VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.phalanx-installed
DEV_STAMP := $(VENV)/.tools-installed
TORCH_STAMP := $(VENV)/.torch-installed
OPENENV_STAMP := $(VENV)/openenv/.installed
PYTHON ?=
PYTEST_ARGS ?=
# Most of the suite's time is XLA compiling, which two processes do side by side; each takes 2 GB or more.
TEST_PROCESSES ?= 2
DEMO_ARGS ?=
BENCH_ARGS ?=

# What the installed package is made from, besides the Python files, which an editable install reads in place.
BUILD_INPUTS := pyproject.toml constraints/ci.txt $(wildcard CMakeLists.txt src/native/* src/native/*/*)

# The pins hold for the isolated build environment too: pip before 25.3 reads PIP_CONSTRAINT there, later
# ones PIP_BUILD_CONSTRAINT; each ignores the other's.
PIP_INSTALL := PIP_CONSTRAINT=constraints/ci.txt PIP_BUILD_CONSTRAINT=constraints/ci.txt PIP_DISABLE_PIP_VERSION_CHECK=1 \
	$(BIN)/python -m pip install $(if $(VERBOSE),--verbose,-qq)

# The tests start the command many times, so that compiled modules are worth keeping even where the environment
# says otherwise.
PYTEST := PYTHONDONTWRITEBYTECODE= $(BIN)/python -m pytest --numprocesses $(TEST_PROCESSES) --dist loadfile --no-loadscope-reorder

.PHONY: help install demo check test openenv lint format docs bench compare compare-tokens compare-training wheel-check clean distclean

help:  ## this list
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  make \1\t\2/p' $(MAKEFILE_LIST) | expand -t 20

install: $(DEV_STAMP)  ## set up .venv; the others do it by themselves (-B: again; VERBOSE=1: show the build)

demo: $(STAMP)  ## train the default agent on built-in tasks; writes out/demo/report.html
	@$(BIN)/phalanx demo $(DEMO_ARGS)

check: $(DEV_STAMP)  ## the tests to run while editing: all but the slow ones
	@$(PYTEST) -m "not slow" $(PYTEST_ARGS)

test: $(DEV_STAMP) $(TORCH_STAMP) $(OPENENV_STAMP)  ## the whole test suite
	@$(PYTEST) $(PYTEST_ARGS)

openenv: $(OPENENV_STAMP)  ## OpenEnv's own client for the tests, in a venv of its own within .venv

NATIVE_SOURCES = $(wildcard src/native/*.h src/native/*.cc src/native/*/*.h src/native/*/*.cc)

lint: $(DEV_STAMP)  ## ruff, clang-format, mypy, and the import contracts
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/clang-format --dry-run --Werror $(NATIVE_SOURCES)
	@$(BIN)/mypy
	@$(BIN)/lint-imports

format: $(DEV_STAMP)  ## let ruff and clang-format rewrite the files
	@$(BIN)/ruff check --fix .
	@$(BIN)/ruff format .
	@$(BIN)/clang-format -i $(NATIVE_SOURCES)

docs: $(DEV_STAMP)  ## the documentation as a site, into out/site; a warning is an error
	@$(BIN)/python scripts/docs/generate.py
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet --strict

bench: $(DEV_STAMP)  ## measure; prints one JSON line for each measurement
	@$(BIN)/python benchmarks/arc.py --json $(BENCH_ARGS)
	@$(BIN)/python benchmarks/tokens.py --json
	@$(BIN)/python benchmarks/training.py --json
	@$(BIN)/python benchmarks/proofs.py --json

compare: $(DEV_STAMP)  ## measure beside other ARC environments, each in a venv of its own (20 minutes)
	@$(BIN)/python benchmarks/compare_arc.py $(BENCH_ARGS)

compare-tokens: $(DEV_STAMP)  ## measure beside other token batchers, each in a venv of its own (6 minutes)
	@$(BIN)/python benchmarks/compare_tokens.py $(BENCH_ARGS)

compare-training: $(DEV_STAMP)  ## train beside JaxARC's environment with the same network (10 minutes)
	@$(BIN)/python benchmarks/compare_training.py $(BENCH_ARGS)

wheel-check: $(DEV_STAMP)  ## build a wheel, install it without extras into a clean venv, take a step
	@.ci/check-wheel

clean:  ## remove what was built or written, but not .venv
	rm -rf build dist out .pytest_cache .hypothesis .mypy_cache .ruff_cache .import_linter_cache
	find src tests examples benchmarks scripts -name __pycache__ -type d -prune -exec rm -rf {} +

distclean: clean  ## remove .venv too
	rm -rf $(VENV)

$(BIN)/python:
	@set -e; \
	for candidate in $(if $(PYTHON),$(PYTHON),python3.11 python3.12 python3.13 python3.14 python3 python); do \
	  if $$candidate -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1; then \
	    echo "phalanx: making $(VENV) with $$($$candidate --version)"; \
	    exec $$candidate -m venv $(VENV); \
	  fi; \
	done; \
	echo "phalanx: no Python 3.11 or later $(if $(PYTHON),at PYTHON=$(PYTHON),found); install one, or name it: make PYTHON=/path/to/python3.11" >&2; \
	exit 1

# PyTorch's side of the sampler is tested with PyTorch itself; nothing but the tests needs it here.
$(TORCH_STAMP): constraints/ci.txt | $(BIN)/python
	@echo "phalanx: installing PyTorch for the tests"
	@$(PIP_INSTALL) torch torchrl stable-baselines3 sb3-contrib transformers accelerate trl lightning verifiers skyrl-gym
	@touch $@

# OpenEnv's requirements clash with those of verifiers and with the pins here, so it has a venv and pins of its own.
$(OPENENV_STAMP): constraints/openenv.txt | $(BIN)/python
	@echo "phalanx: installing OpenEnv's client for the tests"
	@$(BIN)/python -m venv $(VENV)/openenv
	@PIP_DISABLE_PIP_VERSION_CHECK=1 $(VENV)/openenv/bin/python -m pip install $(if $(VERBOSE),--verbose,-qq) \
		--constraint constraints/openenv.txt openenv
	@touch $@

# For the demo the package by itself is enough; everything else wants its extras and the tools too.
$(STAMP): $(BUILD_INPUTS) | $(BIN)/python
	@echo "phalanx: installing into $(VENV) (minutes the first time, seconds later)"
	@$(PIP_INSTALL) --editable .
	@touch $@
	@$(BIN)/phalanx info | grep '^native'

$(DEV_STAMP): $(BUILD_INPUTS) | $(BIN)/python
	@echo "phalanx: installing with tools and extras into $(VENV) (minutes the first time, seconds later)"
	@$(PIP_INSTALL) --editable '.[dev]'
	@touch $(STAMP) $@
	@$(BIN)/phalanx info | grep '^native'

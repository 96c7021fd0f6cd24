# Every target first creates the virtual environment .venv and installs the package into it if necessary.
#   make demo                        train an agent on built-in tasks and write a report
#   make test PYTEST_ARGS="-k cli"   pass arguments to pytest
#   make demo PYTHON=python3.12      use another interpreter (3.11 or later)

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
# Most of the test time is spent in the XLA compiler, so two processes help. Each needs 2 GB of memory or more.
TEST_PROCESSES ?= 2
DEMO_ARGS ?=
SUITE ?=
BENCH_ARGS ?=

# Changes to these files require a new install; an editable install reads Python files in place.
BUILD_INPUTS := pyproject.toml constraints/ci.txt $(wildcard CMakeLists.txt src/native/* src/native/*/*)

# The pins also apply to the isolated build environment: pip before 25.3 reads PIP_CONSTRAINT there, later
# versions read PIP_BUILD_CONSTRAINT.
PIP_INSTALL := PIP_CONSTRAINT=constraints/ci.txt PIP_BUILD_CONSTRAINT=constraints/ci.txt PIP_DISABLE_PIP_VERSION_CHECK=1 \
	$(BIN)/python -m pip install $(if $(VERBOSE),--verbose,-qq)

# uv installs the packages of the tests much faster than pip. The demo and PyTorch are installed with pip: it reads the
# user's configuration of indexes and of local files, which may have a build of PyTorch without CUDA.
UV_INSTALL := $(BIN)/uv pip install $(if $(VERBOSE),--verbose,--quiet)
UV_CONSTRAINTS := --python $(BIN)/python --constraint constraints/ci.txt --build-constraint constraints/ci.txt

# The tests start many Python processes, so bytecode is cached even if the environment disables it.
PYTEST := PYTHONDONTWRITEBYTECODE= $(BIN)/python -m pytest --numprocesses $(TEST_PROCESSES) --dist loadfile --no-loadscope-reorder

.PHONY: help install demo check test openenv lint format docs bench wheel-check clean distclean

help:  ## show this list
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  make \1\t\2/p' $(MAKEFILE_LIST) | expand -t 20

install: $(DEV_STAMP)  ## create .venv; other targets do this automatically (-B: again; VERBOSE=1: show the build)

demo: $(STAMP)  ## train an agent on built-in tasks and write out/demo/report.html
	@$(BIN)/phalanx demo $(DEMO_ARGS)

SLOW_FOLDERS := integrations examples benchmarks compat faults

check: $(DEV_STAMP)  ## run the fast tests
	@$(PYTEST) -m "not slow" $(SLOW_FOLDERS:%=--ignore=tests/%) $(PYTEST_ARGS)

test: $(DEV_STAMP) $(TORCH_STAMP) $(OPENENV_STAMP)  ## run all tests; installs Chromium for the browser tests if possible
	@.ci/install-chromium || echo "phalanx: the browser tests will be skipped" >&2
	@$(PYTEST) $(PYTEST_ARGS)

openenv: $(OPENENV_STAMP)  ## install OpenEnv's client for the tests in a separate environment

NATIVE_SOURCES = $(wildcard src/native/*.h src/native/*.cc src/native/*/*.h src/native/*/*.cc)

lint: $(DEV_STAMP)  ## run ruff, clang-format, mypy and the import contracts
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/clang-format --dry-run --Werror $(NATIVE_SOURCES)
	@$(BIN)/mypy
	@$(BIN)/lint-imports

format: $(DEV_STAMP)  ## fix lint errors and format the code
	@$(BIN)/ruff check --fix .
	@$(BIN)/ruff format .
	@$(BIN)/clang-format -i $(NATIVE_SOURCES)

docs: $(DEV_STAMP)  ## build the documentation into out/site; warnings are errors
	@$(BIN)/python scripts/docs/generate.py
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet --strict

bench: $(DEV_STAMP)  ## run a benchmark suite, such as SUITE=arc_env; without SUITE, list all suites
	@$(BIN)/python -m benchmarks $(if $(SUITE),$(SUITE) $(BENCH_ARGS),--list)

wheel-check: $(DEV_STAMP)  ## build a wheel, install it into clean venvs and check the base install and a short training
	@.ci/check-wheel

clean:  ## remove build products and outputs, but not .venv
	rm -rf build dist out .pytest_cache .hypothesis .mypy_cache .ruff_cache .import_linter_cache
	find src tests examples benchmarks scripts -name __pycache__ -type d -prune -exec rm -rf {} +

distclean: clean  ## also remove .venv
	rm -rf $(VENV)

$(BIN)/python:
	@set -e; \
	for candidate in $(if $(PYTHON),$(PYTHON),python3.11 python3.12 python3.13 python3.14 python3 python); do \
	  if $$candidate -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1; then \
	    echo "phalanx: creating $(VENV) with $$($$candidate --version)"; \
	    exec $$candidate -m venv $(VENV); \
	  fi; \
	done; \
	echo "phalanx: no Python 3.11 or later $(if $(PYTHON),at PYTHON=$(PYTHON),found); install one or run: make PYTHON=/path/to/python3.11" >&2; \
	exit 1

$(BIN)/uv: | $(BIN)/python
	@$(PIP_INSTALL) uv

# Only the tests need PyTorch and the libraries that build on it.
$(TORCH_STAMP): constraints/ci.txt | $(BIN)/uv
	@echo "phalanx: installing PyTorch for the tests"
	@$(PIP_INSTALL) --no-compile torch
	@$(UV_INSTALL) $(UV_CONSTRAINTS) torchrl stable-baselines3 sb3-contrib transformers accelerate trl lightning \
		verifiers skyrl-gym
	@touch $@

# OpenEnv's requirements conflict with those of verifiers, so it has its own venv and pins.
$(OPENENV_STAMP): constraints/openenv.txt | $(BIN)/uv
	@echo "phalanx: installing OpenEnv's client for the tests"
	@$(BIN)/python -m venv $(VENV)/openenv
	@$(UV_INSTALL) --python $(VENV)/openenv/bin/python --constraint constraints/openenv.txt openenv
	@touch $@

# The demo needs only the package and JAX; everything else also needs the other extras and development tools.
$(STAMP): $(BUILD_INPUTS) | $(BIN)/python
	@echo "phalanx: installing into $(VENV) (takes minutes the first time)"
	@$(PIP_INSTALL) --editable '.[jax]'
	@touch $@
	@$(BIN)/phalanx info | grep '^native'

$(DEV_STAMP): $(BUILD_INPUTS) | $(BIN)/uv
	@echo "phalanx: installing with extras and tools into $(VENV) (takes minutes the first time)"
	@$(UV_INSTALL) $(UV_CONSTRAINTS) --editable '.[dev]'
	@touch $(STAMP) $@
	@$(BIN)/phalanx info | grep '^native'

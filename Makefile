# The one vocabulary of people and CI. `make help` lists it.
# Needs Python 3.11+ with pip and a C compiler; all else is installed into .venv on first use, and again
# only when pyproject.toml or constraints.txt change.

PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
INSTALL := $(BIN)/python -m pip install --constraint constraints.txt --editable

.NOTPARALLEL:
.DEFAULT_GOAL := help
.PHONY: help demo test test-slow test-gpu test-gpu-slow lint format types layers wheel-test docs bench check constraints clean

help: ## list the targets
	@awk -F':.*## ' '/^[a-z-]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' Makefile

# --- what a newcomer runs ---------------------------------------------------------------------

demo: $(VENV)/.engine ## install the engine and show it at work, in some minutes
	$(BIN)/ostinato demo

test: $(VENV)/.dev ## all tests that need no GPU and no network
	$(BIN)/python -m pytest

# --- checks -----------------------------------------------------------------------------------

check: lint types layers test wheel-test ## all that must hold before a change lands

lint: $(VENV)/.dev ## style: ruff check and ruff format --check
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

format: $(VENV)/.dev ## mend what `make lint` can mend by itself
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

types: $(VENV)/.dev ## mypy --strict on src
	$(BIN)/mypy

layers: $(VENV)/.dev ## import contracts: imports point down, no cycles
	$(BIN)/lint-imports --no-cache

test-slow: $(VENV)/.dev ## the slow tests, those that fetch a model among them
	$(BIN)/python -m pytest -m "slow and not gpu"

# GPU_PYTHON=python3 runs with an interpreter that has torch and pytest already, without a .venv.
test-gpu: $(if $(GPU_PYTHON),,$(VENV)/.dev) ## the tests that need a CUDA device
	PYTHONPATH=src $(or $(GPU_PYTHON),$(BIN)/python) -m pytest -m "gpu and not slow"

test-gpu-slow: $(if $(GPU_PYTHON),,$(VENV)/.dev) ## every kernel in every dtype and shape: minutes of compiling
	PYTHONPATH=src $(or $(GPU_PYTHON),$(BIN)/python) -m pytest -m "gpu and slow"

wheel-test: $(VENV)/.dev ## build the wheel and use it without the source tree
	$(BIN)/python -m pytest -m slow tests/boundaries/test_wheel.py

# --- the rest ---------------------------------------------------------------------------------

docs: $(VENV)/.docs ## build the documentation into site/
	$(BIN)/python tools/errors_page.py
	$(BIN)/python tools/faults_page.py
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

# A CPU and a made-up model of 1 MB: shows that measuring works and what it prints, not how fast anything is.
TINY := build/tiny-model
bench: $(VENV)/.dev ## measure decode and prefill of a tiny made-up model on the CPU
	$(BIN)/python -c "from ostinato.testing.tiny_models import write_tiny_model as w; w('$(TINY)', has_weights=False, has_tokenizer=False)"
	$(BIN)/ostinato bench decode --model $(TINY) --load-format dummy --device cpu
	$(BIN)/ostinato bench prefill --model $(TINY) --load-format dummy --device cpu

constraints: ## resolve all extras afresh and rewrite constraints.txt
	$(PYTHON) tools/constraints.py

clean: ## remove what was built and cached; `rm -r .venv` removes the installation too
	rm -rf build dist site .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis
	find . -path ./$(VENV) -prune -o -type d -name __pycache__ -exec rm -rf {} +

# --- installation -----------------------------------------------------------------------------

# Some systems ship Python without ensurepip; then the system's own pip fills the new environment.
$(VENV)/.python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Ostinato needs Python 3.11 or newer; try make PYTHON=python3.12")'
	$(PYTHON) -m venv --clear $(VENV) || \
	    { $(PYTHON) -m venv --clear --without-pip $(VENV) && $(PYTHON) -m pip --python $(BIN)/python install pip; }
	@touch $@

$(VENV)/.engine: $(VENV)/.python pyproject.toml constraints.txt
	$(INSTALL) '.[engine]'
	@touch $@

$(VENV)/.dev: $(VENV)/.python pyproject.toml constraints.txt
	$(INSTALL) '.[dev]'
	@touch $@ $(VENV)/.engine

$(VENV)/.docs: $(VENV)/.dev
	$(INSTALL) '.[docs]'
	@touch $@

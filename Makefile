# Hybrid. `make help` lists what there is.
# The first that is there, runs (a pyenv shim may not) and is new enough.
PYTHON ?= $(shell for p in python3.13 python3.12 python3.11 python3; do \
  $$p -c 'import sys, venv; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1 && { command -v $$p; break; }; done)
VENV   := .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.ready

.PHONY: help setup demo test unit check bench lock clean

help:            ## list the targets
	@grep -E '^[a-z]+: .*##' $(MAKEFILE_LIST) | sed 's/: .*##/\t/' | expand -t 12

setup: $(STAMP)  ## make .venv with everything (does nothing when it is up to date)

$(STAMP): pyproject.toml constraints.txt
	@test -n "$(PYTHON)" || \
	  { echo "No Python 3.11 or newer with venv was found. Set PYTHON=/path/to/python3.11" >&2; exit 1; }
	@if command -v uv >/dev/null 2>&1; then \
	  test -x $(BIN)/python || uv venv --quiet --python $(PYTHON) $(VENV); \
	  uv pip install --quiet --python $(BIN)/python -c constraints.txt -e '.[postgres]' --group dev; \
	else \
	  test -x $(BIN)/python || $(PYTHON) -m venv $(VENV); \
	  $(BIN)/python -m pip install --quiet --disable-pip-version-check 'pip>=25.1'; \
	  $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[postgres]' --group dev; \
	fi
	@touch $(STAMP)

demo: setup      ## the whole path on this machine: fake cards, real Ray jobs, overflow, bill
	@$(BIN)/hybrid demo

test: setup      ## all tests
	@$(BIN)/python -m pytest

unit: setup      ## only the tests that start no Ray and replay no long history (under a minute)
	@$(BIN)/python -m pytest -m 'not ray and not slow' -n 2

check: setup     ## format, lint, types, layers, dependencies
	@$(BIN)/ruff format --check .
	@$(BIN)/ruff check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports
	@$(BIN)/deptry .

bench: setup     ## measure; tables on the screen, build/bench/*.json
	@$(BIN)/python -m tests.bench

lock: setup      ## write constraints.txt anew from what is installed
	@$(BIN)/python -m pip freeze --exclude-editable --exclude pip --exclude setuptools | sort -f > constraints.txt

clean:           ## remove what can be made again
	rm -rf $(VENV) build dist .mypy_cache .ruff_cache .pytest_cache .import_linter_cache

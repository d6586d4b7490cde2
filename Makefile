# Everything is set up from here into .venv; nothing needs root. `make` alone lists the targets.

VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/installed
PIP := $(BIN)/python -m pip --disable-pip-version-check
IS_NEW_ENOUGH := -c 'import sys; sys.exit(sys.version_info < (3, 11))'

# The first of these that is 3.11 or newer; `make PYTHON=…` takes another.
PYTHON ?= $(firstword $(foreach name,python3 python3.14 python3.13 python3.12 python3.11 python,\
	$(shell $(name) $(IS_NEW_ENOUGH) 2>/dev/null && echo $(name))))

# With FORGE_NO_SKIPS=1 a skipped test is a failure, as in .ci/run.
PYTEST_ARGS ?=
# Tests wait more than they compute, so two files at a time pay on two cores; JOBS=0: in a row.
JOBS ?= 2
NO_SKIPS := $(if $(filter-out 0,$(FORGE_NO_SKIPS)),-p tests.no_skips)

MAKEFLAGS += --no-print-directory
.DEFAULT_GOAL := help
.PHONY: help venv lint types floors test demo bench soak clean

help: ## This list
	@sed -n 's/^\([a-z]*\):.*## \(.*\)/  make \1	\2/p' $(MAKEFILE_LIST)

venv: $(STAMP) ## Make .venv with forge and its tools, once per change of pyproject.toml

$(STAMP): pyproject.toml
	@if test -z "$(PYTHON)" || ! $(PYTHON) $(IS_NEW_ENOUGH) 2>/dev/null; then \
		echo "forge needs Python 3.11 or newer; name one: make PYTHON=/path/to/python3.11" >&2; exit 1; fi
	@$(BIN)/python $(IS_NEW_ENOUGH) 2>/dev/null && $(BIN)/python -m pip --version >/dev/null 2>&1 \
		|| $(PYTHON) -m venv --clear $(VENV) \
		|| { echo "$(PYTHON) can't make a virtual environment; on Debian: apt install python3-venv" >&2; exit 1; }
	$(PIP) install --quiet --upgrade pip
	$(PIP) install --quiet --editable . --group dev
	@touch $@

lint: $(STAMP) ## ruff: rules and format
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(STAMP) ## mypy, strict
	$(BIN)/mypy

floors: $(STAMP) ## import-linter: each room imports only from below
	$(BIN)/lint-imports

test: $(STAMP) ## pytest; JOBS at a time, PYTEST_ARGS are handed on
	@$(BIN)/python -m pytest -n $(JOBS) --dist loadfile $(NO_SKIPS) $(PYTEST_ARGS)

demo: $(STAMP) ## Two clones: a race for every task, a killed daemon, landings, a conflict, a zombie
	@$(BIN)/forge demo

bench: $(STAMP) ## Measure, beside a plain git push
	@$(BIN)/python -m bench

soak: $(STAMP) ## 10,000 renewals: what they leave on disk and in the audit (takes a quarter of an hour)
	@$(BIN)/python -m bench.soak

clean: ## Remove what was made here
	rm -rf $(VENV) dist build .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis .coverage
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

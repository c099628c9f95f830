# Every command that README, CI and contributors use. `make` alone lists them.

PYTHON ?= python3
PYTEST_ARGS ?=
BIN := .venv/bin
STAMP := .venv/.installed

.DEFAULT_GOAL := help
unexport PYTHONDONTWRITEBYTECODE # else every server that a test starts compiles Django again
.NOTPARALLEL:
.PHONY: help setup demo test soak lint migrations-check coverage bench debian-packages

help: ## list these commands
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-17s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: $(STAMP) ## .venv/ with everything, once (PYTHON=python3.12 chooses another interpreter)

$(STAMP): pyproject.toml requirements.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "sse_limits needs Python 3.11 or newer, and $(PYTHON) is " + sys.version.split()[0] + ". Name another: make PYTHON=python3.12 setup")'
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --upgrade "pip>=25.1"
	$(BIN)/python -m pip install -r requirements.txt --group dev
	@touch $@

demo: setup ## the demo site with live traffic on http://127.0.0.1:8000/ (PORT=… for another port)
	@exec $(BIN)/python manage.py demo

test: setup debian-packages lint migrations-check ## everything that CI runs (PYTEST_ARGS=… goes to pytest)
	$(BIN)/python -m pytest $(PYTEST_ARGS)

soak: setup debian-packages ## the long runs of the tests: faults, kills, 20,000 users (a quarter of an hour)
	$(BIN)/python -m pytest -m soak -rA $(PYTEST_ARGS)

lint: setup ## ruff, mypy, import-linter, codespell
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo
	$(BIN)/codespell

migrations-check: setup ## fail if a model changed without its migration
	$(BIN)/python manage.py makemigrations --check --dry-run

coverage: setup ## the tests with branch coverage
	$(BIN)/python -m pytest --cov --cov-report=term $(PYTEST_ARGS)

bench: setup ## the benchmarks
	@exec $(BIN)/python -m bench

debian-packages: ## Debian packages the tests need: installed when root, listed otherwise
	@.ci/debian-packages

# The two commands of the README need nothing but Python 3.11+ and make: each builds .venv when it is missing or stale.
PYTHON ?= python3
BIN := .venv/bin
PIP := $(BIN)/pip --disable-pip-version-check

.PHONY: demo test chromium test-slow check format screenshots clean

$(BIN)/python:
	$(PYTHON) -m venv .venv

.venv/.core: pyproject.toml | $(BIN)/python
	$(PIP) install -q -e . 2>&1 | { grep -v 'is ignored' || true; }
	@$(BIN)/python -c 'import torch, pmlm'
	@touch $@

.venv/.dev: pyproject.toml | $(BIN)/python
	$(PIP) install -q -e '.[dev]' 2>&1 | { grep -v 'is ignored' || true; }
	@$(BIN)/python -c 'import torch, pmlm, pytest'
	@touch $@ .venv/.core

demo: .venv/.core
	$(BIN)/python examples/demo.py

test: .venv/.dev
	$(BIN)/python -m pytest $(ARGS)

# The browser tests drive Chromium; where it is missing and cannot be had they are skipped.
chromium:
	@command -v chromium >/dev/null || { apt-get update -qq && apt-get install -y -qq chromium; } || true

test-slow: .venv/.dev
	$(BIN)/python -m pytest -m slow $(ARGS)

check: .venv/.dev
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

format: .venv/.dev
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

# The pictures of the page in docs/img, of the model inside the package (or: make screenshots ARGS='-m MODEL').
screenshots: .venv/.dev chromium
	$(BIN)/python scripts/screenshots.py $(ARGS)

clean:
	rm -rf .venv .pytest_cache .mypy_cache .ruff_cache

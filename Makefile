# make plan     answer one question, from a bare clone
# make test     everything that must hold
# make test-all the same with every case of every grid, and 300 examples of a law
# make loop     profile this machine, plan, train, and compare with the prediction
# make networks the same on slower and slower networks (network namespaces)
# make docs     the documentation as a site, in build/site
# make lint     ruff: style and format
# make types    mypy, strict
# make clean    remove what builds and tests leave; distclean: the environment too

PYTHON ?= python3
VENV ?= .venv
WORKERS ?= 2
BIN := $(VENV)/bin
INSTALL := $(BIN)/python -m pip install --disable-pip-version-check \
	-c constraints.txt
INPUTS := setup.cfg pyproject.toml constraints.txt

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.NOTPARALLEL:
.PHONY: help plan test test-all loop networks docs lint types clean distclean

help:
	@sed -n 's/^# make/make/p' Makefile

plan: $(VENV)/.installed
	$(BIN)/plan --model gpt-13b --gpus 64

test: $(VENV)/.installed-dev
	$(BIN)/python -m pytest -n $(WORKERS) --dist worksteal

test-all: $(VENV)/.installed-dev
	$(BIN)/python -m pytest -n $(WORKERS) --dist worksteal -m "" \
		--hypothesis-profile thorough

loop: $(VENV)/.installed-dev
	$(BIN)/python -m benchmarks.closed_loop --model gpt-mini --ranks 2 --layouts 6 \
		--rounds 3 --profile-seconds 75 $(LOOP)

networks: $(VENV)/.installed-dev
	$(BIN)/python benchmarks/networks.py $(NETWORKS)

docs: $(VENV)/.installed-dev
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict

lint: $(VENV)/.installed-dev
	$(BIN)/python -m ruff check .
	$(BIN)/python -m ruff format --check .

types: $(VENV)/.installed-dev
	$(BIN)/python -m mypy

clean:
	rm -rf build dist *.egg-info .hypothesis .mypy_cache .pytest_cache .ruff_cache
	find . -name __pycache__ -not -path './$(VENV)/*' -prune -exec rm -rf {} +

distclean: clean
	rm -rf $(VENV)

# The stamps are older than what they were made from when that changes: install again.
$(VENV)/.installed: $(INPUTS)
	$(call environment)
	$(INSTALL) -e . >&2
	@touch $@

$(VENV)/.installed-dev: $(INPUTS)
	$(call environment)
	$(INSTALL) -e '.[dev,docs]' >&2
	@touch $(VENV)/.installed $@

define environment
@command -v $(PYTHON) >/dev/null || { \
	echo "$(PYTHON) is not there; name a Python 3.11 to 3.14, as in:" \
	"make PYTHON=python3.12" >&2; exit 1; }
@$(PYTHON) -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 14))' \
	|| { echo "$(PYTHON) is $$($(PYTHON) --version 2>&1); meshwright needs Python" \
	"3.11 to 3.14, as in: make PYTHON=python3.12" >&2; exit 1; }
@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
endef

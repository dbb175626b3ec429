PYTHON ?= python3
PIP = -m pip install --quiet --disable-pip-version-check

.PHONY: help seed test lint bench clean

help:  ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-6s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

seed: .venv-seed/installed  ## the table of TileLang issue #948; needs numpy and no GPU
	.venv-seed/bin/python -m crosscheck seed

test: .venv/installed lint  ## ruff, mypy and every test; installs TileLang and torch, needs no GPU
	.venv/bin/python -m pytest -n 2

lint: .venv/installed  ## ruff and mypy
	.venv/bin/ruff check .
	.venv/bin/mypy

bench: .venv/installed  ## side-by-side measurements, ratios only
	.venv/bin/python -m bench

clean:  ## remove the environments and caches
	rm -rf .venv .venv-seed .hypothesis .mypy_cache .pytest_cache .ruff_cache

.venv-seed/installed: pyproject.toml
	$(PYTHON) -m venv .venv-seed
	.venv-seed/bin/python $(PIP) -e .
	touch $@

.venv/installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	.venv/bin/python $(PIP) -e '.[gpu,test]' -c constraints.txt
	touch $@

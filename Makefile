# Everything from nothing but Python 3.11 and make. Each target installs what it needs, once.
PYTHON ?= python3
BIN := .venv/bin

.PHONY: help demo pacs test lint format slow clean

help:
	@echo "make demo   train on rotated digits, compare five methods, write a page (2 minutes on 2 cores)"
	@echo "make pacs   what results/pacs/plan.json has no records of yet (hours on a GPU); ROOT=folder of the images,"
	@echo "            PARTS='main sizes' for some parts of it only, FLAGS='--jobs 9' for a large GPU"
	@echo "make test   lint, then every test that needs no GPU and no downloaded data"
	@echo "make lint   ruff, import-linter, mypy"
	@echo "make slow   the tests that train for longer"
	@echo "make format mend what can be mended by machine"

demo: .venv/demo.stamp
	$(BIN)/generalizeformer demo

# What is stored is not done twice.
pacs: .venv/all.stamp
	$(BIN)/generalizeformer reproduce results/pacs $(if $(ROOT),--root '$(ROOT)') \
		$(if $(PARTS),--parts $(PARTS)) $(FLAGS)

# Files side by side: what a file's tests have built and trained is shared by them.
test: lint
	$(BIN)/python -m pytest -n logical --maxprocesses 4 --dist loadfile

lint: .venv/dev.stamp
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports
	$(BIN)/mypy

slow: .venv/dev.stamp
	$(BIN)/python -m pytest -m slow

format: .venv/dev.stamp
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean:
	rm -rf .venv .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache

.venv/pip.stamp:
	@$(PYTHON) -c 'import sys; sys.exit(0 if sys.version_info >= (3, 11) else "generalizeformer needs Python 3.11 or newer, this is " + sys.version.split()[0] + "; run make PYTHON=python3.11")'
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --upgrade pip
	@touch $@

.venv/demo.stamp: .venv/pip.stamp pyproject.toml
	$(BIN)/python -m pip install --quiet --editable '.[report]'
	@touch $@

.venv/all.stamp: .venv/pip.stamp pyproject.toml
	$(BIN)/python -m pip install --quiet --editable '.[all]'
	@touch $@

.venv/dev.stamp: .venv/pip.stamp pyproject.toml
	$(BIN)/python -m pip install --quiet --group dev --editable '.[all]'
	@touch $@

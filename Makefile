# Everything from nothing but Python 3.11 and make. Each target installs what it needs, once.
PYTHON ?= python3
BIN := .venv/bin

.PHONY: help demo pacs test lint format slow clean

help:
	@echo "make demo   train on rotated digits, compare five methods, write a page (4 minutes on 2 cores)"
	@echo "make pacs   all benchmarks on PACS into results/pacs; ROOT=folder of the images, SUITE=one, FLAGS=more (hours, GPU)"
	@echo "make test   lint, then every test that needs no GPU and no downloaded data"
	@echo "make lint   ruff, import-linter, mypy"
	@echo "make slow   the tests that train for longer"
	@echo "make format mend what can be mended by machine"

demo: .venv/demo.stamp
	$(BIN)/generalizeformer demo

SUITE ?= main dynamic single-source output-shift ablations
# The settings of the recipes lie beside the results that they gave.
pacs: .venv/all.stamp
	$(BIN)/generalizeformer benchmark results/pacs --suite $(SUITE) --data pacs $(if $(ROOT),--root '$(ROOT)') \
		--backbone tf_efficientnet_lite0 --pretrained --image-size 224 \
		--settings results/pacs/settings.json --paper-settings results/pacs/paper_settings.json $(FLAGS)

test: lint
	$(BIN)/python -m pytest

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

# Everything from nothing but Python 3.11 and make. Each target installs what it needs, once.
PYTHON ?= python3
BIN := .venv/bin

.PHONY: help demo pacs pacs-main pacs-sizes pacs-methods pacs-dynamic pacs-single-source pacs-output-shift pacs-ablations test lint format slow clean

help:
	@echo "make demo   train on rotated digits, compare five methods, write a page (4 minutes on 2 cores)"
	@echo "make pacs   all benchmarks on PACS into results/pacs (hours on a GPU); ROOT=folder of the images, FLAGS=more"
	@echo "            or one: pacs-main pacs-sizes pacs-methods pacs-dynamic pacs-single-source pacs-output-shift pacs-ablations"
	@echo "make test   lint, then every test that needs no GPU and no downloaded data"
	@echo "make lint   ruff, import-linter, mypy"
	@echo "make slow   the tests that train for longer"
	@echo "make format mend what can be mended by machine"

demo: .venv/demo.stamp
	$(BIN)/generalizeformer demo

# Each of these can be run by itself, and again: what is stored is not done twice. FLAGS="--jobs 12" for a large GPU.
PACS = $(BIN)/generalizeformer benchmark results/pacs --data pacs $(if $(ROOT),--root '$(ROOT)') \
	--backbone tf_efficientnet_lite0 --pretrained --image-size 224 --precision bf16-mixed --selection-limit 100 \
	--paper-settings results/pacs/paper_settings.json $(FLAGS)
# The settings of the recipes lie beside the results that they gave.
OURS := --settings results/pacs/settings.json

pacs: pacs-main pacs-sizes pacs-methods pacs-dynamic pacs-single-source pacs-output-shift pacs-ablations

pacs-main: .venv/all.stamp
	$(PACS) $(OURS) --batch-sizes 20

pacs-sizes: .venv/all.stamp
	$(PACS) $(OURS) --batch-sizes 1 64 128 --methods source alpha_bn t3a generalizeformer

pacs-methods: .venv/all.stamp
	$(PACS) $(OURS) results/pacs/companions.json --batch-sizes 20 --methods all

pacs-dynamic: .venv/all.stamp
	$(PACS) $(OURS) --suite dynamic --limit 200 --batch-sizes 20 64 --methods source generalizeformer tent

pacs-single-source: .venv/all.stamp
	$(PACS) $(OURS) results/pacs/single_source_settings.json --suite single-source --sources photo

pacs-output-shift: .venv/all.stamp
	$(PACS) $(OURS) --suite output-shift

pacs-ablations: .venv/all.stamp
	$(PACS) $(OURS) --suite ablations

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

# make run · make test · make lint · make docs · make bench · make smoke; each sets up what it needs.
PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin

.PHONY: run simulation deploy-demo test test-all lint format generate pins docs bench smoke fab clean

$(VENV)/.installed: pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	    { echo "$(PYTHON) is too old: Python 3.11 or later is needed. Try: make PYTHON=python3.12"; exit 1; }
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt uv
	$(BIN)/uv pip install --quiet --python $(BIN)/python --constraint constraints.txt --editable ".[dev]"
	touch $@

run: $(VENV)/.installed
	$(BIN)/fedapp run

simulation: $(VENV)/.installed
	PATH="$(CURDIR)/$(BIN):$$PATH" FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION=1 $(BIN)/python -m deploy.run

test: $(VENV)/.installed
	$(BIN)/python -m pytest

test-all: $(VENV)/.installed
	$(BIN)/python -m pytest -m ""

lint: $(VENV)/.installed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/python -m fedapp.cli.generate --check

format: $(VENV)/.installed
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

generate: $(VENV)/.installed
	$(BIN)/python -m fedapp.cli.generate
	$(BIN)/python -m benchmarks.round_picture --write >/dev/null

# The newest versions that pyproject.toml allows; the lowest Python, so that they hold for all.
pins: $(VENV)/.installed
	$(BIN)/uv --no-config pip compile pyproject.toml --extra dev --upgrade --python-version 3.11 \
	    --python-platform linux --no-annotate --no-header --quiet --output-file constraints.txt
	$(BIN)/python -m fedapp.cli.generate

# A SuperLink and three devices on this machine, with TLS and node authentication; a minute or two.
deploy-demo: $(VENV)/.installed
	$(BIN)/python -m deploy.demo

docs: $(VENV)/.installed
	$(BIN)/sphinx-build -W --keep-going -b html docs docs/_build/html

bench: $(VENV)/.installed
	$(BIN)/python -m benchmarks

# Every table and figure of the papers at its smallest scale, into runs/smoke.
smoke: $(VENV)/.installed
	$(BIN)/fedapp reproduce all --scale smoke --runs runs/smoke --to runs/smoke/results

fab: $(VENV)/.installed
	$(BIN)/flwr build --app .

clean:
	rm -rf $(VENV) docs/_build .pytest_cache .mypy_cache .ruff_cache

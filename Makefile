# make run · make test · make lint · make docs · make bench; each sets up what it needs.
PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin

.PHONY: run simulation test lint format types docs bench generate fab clean

$(VENV)/.installed: pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check uv
	$(BIN)/uv pip install --quiet --python $(BIN)/python --constraint constraints.txt --editable ".[dev]"
	touch $@

run: $(VENV)/.installed
	$(BIN)/fedapp run

simulation: $(VENV)/.installed
	PATH="$(CURDIR)/$(BIN):$$PATH" FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION=1 $(BIN)/flwr run . --stream

test: $(VENV)/.installed
	$(BIN)/python -m pytest

lint: $(VENV)/.installed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/python -m fedapp.generate --check

format: $(VENV)/.installed
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

generate: $(VENV)/.installed
	$(BIN)/python -m fedapp.generate

docs: $(VENV)/.installed
	$(BIN)/sphinx-build -W --keep-going -b html docs docs/_build/html

bench: $(VENV)/.installed
	$(BIN)/python -m benchmarks

fab: $(VENV)/.installed
	$(BIN)/flwr build --app .

clean:
	rm -rf $(VENV) docs/_build .pytest_cache .mypy_cache .ruff_cache

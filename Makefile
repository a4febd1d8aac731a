# make run · make test · make lint · make docs · make bench · make smoke; each sets up what it needs.
PYTHON ?= python3
# `flwr run` looks at every file of the app's folder and follows no link: .venv is a link into the user's cache.
# `make VENV=FOLDER` makes the folder itself.
ifndef VENV
VENV   := .venv
STORE  := $(or $(XDG_CACHE_HOME),$(HOME)/.cache)/fedapp-venv/$(shell pwd | cksum | cut -d ' ' -f 1)
endif
BIN    := $(VENV)/bin

.PHONY: run simulation deploy-demo test test-slow test-pages test-all test-nightly test-lowest lint style types format generate pins device docs bench smoke wheel fab clean

# What a run needs; then what the tests and the other developers' tools need.
$(VENV)/.installed: pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(not (3, 11) <= sys.version_info < (3, 14))' || \
	    { echo "$(PYTHON) is none of Python 3.11 to 3.13. Try: make PYTHON=python3.12"; exit 1; }
	$(BIN)/python -m pip --version >/dev/null 2>&1 || \
	    if test -n "$(STORE)" && { test -L $(VENV) || ! test -e $(VENV); } && mkdir -p "$(STORE)"; \
	    then $(PYTHON) -m venv "$(STORE)" && ln -sfn "$(STORE)" $(VENV); \
	    else $(PYTHON) -m venv $(VENV); fi
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt uv
	$(BIN)/uv pip install --quiet --compile-bytecode --python $(BIN)/python --constraint constraints.txt --editable ".[deploy]"
	touch $@

$(VENV)/.developer: $(VENV)/.installed constraints-dev.txt
	$(BIN)/uv pip install --quiet --compile-bytecode --python $(BIN)/python --constraint constraints-dev.txt --editable ".[dev]"
	touch $@

run: $(VENV)/.installed
	$(BIN)/fedapp run

simulation: $(VENV)/.installed
	PATH="$(CURDIR)/$(BIN):$$PATH" FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION=1 $(BIN)/python -m deploy.run

# The quick selection; what else CI runs; both; and what takes hours (docs/testing.md). The tests' many
# processes share what one has compiled, also where the environment (an image's, often) says not to.
PYTEST := PYTHONDONTWRITEBYTECODE= $(BIN)/python -m pytest -n auto --dist worksteal
# The tests of a file share what is slow to start, as a SuperLink or a Ray cluster.
BY_FILE := --dist loadfile --no-loadscope-reorder

test: $(VENV)/.developer
	$(PYTEST)

test-slow: $(VENV)/.developer
	$(PYTEST) $(BY_FILE) -m "(slow or process or hypothesis) and not (pages or nightly)" --hypothesis-profile thorough

# What README, the lessons and the other pages print, run as it stands; CI has a job of its own for it.
test-pages: $(VENV)/.developer
	$(PYTEST) -m pages

test-all: test test-slow test-pages

test-nightly: $(VENV)/.developer
	$(PYTEST) -m nightly
	$(BIN)/python -m tests.faults

# The quick tests with the lowest versions of what runs need that pyproject.toml allows. torch 2.11 draws two of the
# pinned runs otherwise, and names no line of a rule that it cannot trace; matplotlib 3.10 sets figures otherwise.
LOWEST := $(VENV)/lowest
test-lowest: $(VENV)/.developer
	$(COMPILE) pyproject.toml --extra deploy --extra onnx --resolution lowest-direct --output-file $(LOWEST).txt
	$(BIN)/uv venv --quiet --clear --python $(BIN)/python $(LOWEST)
	$(BIN)/uv --no-config pip install --quiet --python $(LOWEST)/bin/python --requirement $(LOWEST).txt \
	    --editable . hypothesis nbclient nbformat packaging pytest pytest-timeout pytest-xdist pyyaml
	PATH="$(CURDIR)/$(LOWEST)/bin:$$PATH" $(LOWEST)/bin/python -m pytest -n auto --dist worksteal \
	    --ignore tests/test_dependencies.py \
	    -k "not (truncated-normal or cropped-cifar-sequential or test_a_rule_that_branches_on_values \
	        or test_a_figure_is_drawn_from_results_and_records)"

lint: style types

style: $(VENV)/.developer
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/python -m fedapp.cli.generate --check

types: $(VENV)/.developer
	$(BIN)/mypy

format: $(VENV)/.developer
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

generate: $(VENV)/.developer
	$(BIN)/python -m fedapp.cli.generate
	$(BIN)/python -m benchmarks.round_picture --write >/dev/null

# The newest versions that pyproject.toml allows, of what runs need and of the developers' tools with it;
# the lowest Python, so that they hold for all.
COMPILE := $(BIN)/uv --no-config pip compile --python-version 3.11 --no-annotate --no-header --quiet
pins: $(VENV)/.developer
	$(COMPILE) pyproject.toml --extra dev --upgrade --python-platform linux --output-file constraints-dev.txt
	$(COMPILE) pyproject.toml --extra deploy --constraint constraints-dev.txt --upgrade \
	    --python-platform linux --output-file constraints.txt
	$(BIN)/python -m fedapp.cli.generate

# Whether wheels alone make a device of 64-bit ARM.
device: $(VENV)/.installed
	$(COMPILE) deploy/device.txt --constraint constraints.txt --python-platform aarch64-manylinux_2_28 \
	    --only-binary :all: --output-file $(VENV)/device-aarch64.txt

# A SuperLink and three devices on this machine, with TLS and node authentication; a minute or two.
deploy-demo: $(VENV)/.installed
	$(BIN)/python -m deploy.demo

# The pages of results are made from the records first.
docs: $(VENV)/.developer
	$(BIN)/python -m fedapp.cli.generate
	$(BIN)/sphinx-build -W --keep-going -b html docs docs/_build/html

bench: $(VENV)/.developer
	$(BIN)/python -m benchmarks

# Every table and figure of the papers at its smallest scale, into runs/smoke.
smoke: $(VENV)/.installed
	$(BIN)/fedapp reproduce all --scale smoke --runs runs/smoke --to runs/smoke/results

wheel: $(VENV)/.installed
	$(BIN)/uv build --wheel

fab: $(VENV)/.installed
	$(BIN)/flwr build --app .

clean:
	rm -rf $(VENV) "$(STORE)" docs/_build .pytest_cache .mypy_cache .ruff_cache

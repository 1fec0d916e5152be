# One virtual environment, made on demand; `rm -rf .venv build` starts over.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
CPP := $(shell find csrc -name '*.cc' -o -name '*.cu' -o -name '*.cuh' -o -name '*.h')
LISTS := $(shell find csrc -name '*.inc')

.PHONY: demo test lint bench build

demo: build ; $(BIN)/python -m integration.demo

test: lint build ; $(BIN)/python -m pytest -n 2 -m "not gpu"

lint: $(VENV)/.deps ; $(BIN)/ruff check . && $(BIN)/ruff format --check . && $(BIN)/mypy && $(BIN)/clang-format --dry-run -Werror $(CPP)

bench: build ; $(BIN)/python benchmarks/run.py

build: $(VENV)/.built

$(VENV)/.deps: requirements/dev.txt requirements/nvcc.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install -q -r requirements/dev.txt
	-$(BIN)/python -c "import setup, sys; sys.exit(not setup.find_toolkit()[0])" || $(BIN)/python -m pip install -q -r requirements/nvcc.txt
	touch $@

$(VENV)/.built: $(VENV)/.deps setup.py pyproject.toml $(CPP) $(LISTS)
	$(BIN)/python -m pip install -q --no-deps --no-build-isolation -e .
	touch $@

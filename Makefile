# One virtual environment, made on demand; `rm -rf .venv build` starts over. `make demo VENV=` and the other targets with an
# empty VENV install nothing but this package into the Python on PATH: PyTorch and transformers are there already.
PYTHON ?= python3
VENV ?= .venv
BIN := $(if $(VENV),$(VENV)/bin/)
PY := $(if $(VENV),$(VENV)/bin/python,$(PYTHON))
BUILT := $(if $(VENV),$(VENV)/.built,hgemm_ops/_C.so)
DEPS := $(if $(VENV),$(VENV)/.deps)
CPP := $(shell find csrc -name '*.cc' -o -name '*.cu' -o -name '*.cuh' -o -name '*.h')
LISTS := $(shell find csrc -name '*.inc')

.PHONY: demo test lint bench build

demo: build ; $(PY) -m integration.demo

test: lint build ; $(PY) -m pytest -n 2 -m "not gpu"

lint: $(DEPS) ; $(BIN)ruff check . && $(BIN)ruff format --check . && $(BIN)mypy && $(BIN)clang-format --dry-run -Werror $(CPP)

bench: build ; $(PY) benchmarks/run.py

build: $(BUILT)

$(VENV)/.deps: requirements/dev.txt requirements/nvcc.txt
	$(PYTHON) -m venv $(VENV)
	$(PY) -m pip install -q -r requirements/dev.txt
	-$(PY) -c "import setup, sys; sys.exit(not setup.find_toolkit()[0])" || $(PY) -m pip install -q -r requirements/nvcc.txt
	touch $@

$(BUILT): $(DEPS) setup.py pyproject.toml $(CPP) $(LISTS)
	$(PY) -m pip install -q --no-deps --no-build-isolation -e .
	touch $@

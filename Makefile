# One virtual environment, made on demand; `rm -rf .venv build` starts over. `make demo VENV=` and the other targets with an
# empty VENV install nothing but this package into the Python on PATH: PyTorch and transformers are there already.
#
# `make demo` builds for this machine alone: its GPU's architecture, without the ladder, and no kernel where there is no
# GPU. Every other target builds all architectures and the ladder, which `make demo` then takes.
PYTHON ?= python3
VENV ?= .venv
# Releases of torch that the wheel has csrc/aten compiled for; each is downloaded for its headers. A wheel for CUDA 12.8 beside the
# one for CUDA 13: make wheel CUDA_HOME=/usr/local/cuda-12.8 DIST=dist/cu128
DIST ?= dist
TORCHES ?= 2.10.0 2.11.0 2.12.1 2.13.0 2.14.1 2.15.0
BIN := $(if $(VENV),$(VENV)/bin/)
PY := $(if $(VENV),$(VENV)/bin/python,$(PYTHON))
DEPS := $(if $(VENV),$(VENV)/.deps)
LIGHT_DEPS := $(if $(VENV),$(VENV)/.deps-light)
BUILT := $(or $(VENV),build)/.built
LIGHT_BUILT := $(BUILT)-light
CPP := $(shell find csrc -name '*.cc' -o -name '*.cu' -o -name '*.cuh' -o -name '*.h')
RECIPE := setup.py pyproject.toml hgemm_ops/_aten_build.py $(wildcard build_tools/*.py)
LISTS := $(shell find csrc -name '*.inc' -o -name '*.inc.xz')

.PHONY: demo test lint bench build wheel hub docs

demo: $(or $(wildcard $(BUILT)),$(LIGHT_BUILT)) ; $(PY) -m integration.demo

test: lint build ; $(PY) -m pytest -n 2 -m "not gpu"

lint: $(DEPS) ; $(BIN)ruff check . && $(BIN)ruff format --check . && $(BIN)mypy && $(BIN)clang-format --dry-run -Werror $(CPP)

bench: build ; $(PY) benchmarks/run.py

build: $(BUILT)

# The pages as a site, in an environment of their own: it needs neither torch nor a build. A warning is an error.
docs: $(or $(VENV),build)/.docs/.installed
	$(<D)/bin/sphinx-build -q -W --keep-going -c docs -d build/doctrees . build/site
	@echo build/site/index.html

%/.docs/.installed: requirements/docs.txt
	$(PYTHON) -m venv $(@D)
	$(@D)/bin/python -m pip install -q -r $<
	touch $@

wheel: build
	$(PY) -m pip install -q -r requirements/wheel.txt
	rm -rf build/wheel build/lib.* build/lib build/bdist.* $(DIST)/hgemm_ops-*.whl
	HGEMM_OPS_TORCHES="$(TORCHES)" $(PY) -m pip wheel -q --no-deps --no-build-isolation -w build/wheel .
	PATH="$(abspath $(BIN)):$$PATH" $(PY) -m auditwheel repair --exclude 'libtorch*' --exclude 'libc10*' -w $(DIST) build/wheel/*.whl

# A kernel for the library `kernels` (docs/hub.md), beside those that dist/hub has for other CUDA releases.
hub: wheel ; $(PY) -m build_tools.hub $(DIST)/hgemm_ops-*.whl dist/hub

# $(call install,REQUIREMENTS): into the environment, and a compiler where kernels are to be built and there is none. Python
# compiles the modules that it imports; pip would compile all of torch and transformers, which takes longer than to install them.
define install
	$(PYTHON) -m venv $(VENV)
	$(PY) -m pip install -q --no-compile -r $(1)
	$(PY) -m build_tools.toolkit || $(PY) -m pip install -q -r requirements/nvcc.txt || true
	touch $@
endef

# The first line shows ninja's progress; pip finds everything built.
define compile
	$(PY) setup.py --quiet build_ext --inplace
	$(PY) -m pip install -q --no-deps --no-build-isolation -e .
	mkdir -p $(@D) && touch $@
endef

$(LIGHT_DEPS) $(LIGHT_BUILT): export HGEMM_CUDA_ARCHS := $(or $(HGEMM_CUDA_ARCHS),native)
$(LIGHT_BUILT): export HGEMM_LADDER := $(or $(HGEMM_LADDER),0)

$(VENV)/.deps-light: requirements/demo.txt requirements/nvcc.txt ; $(call install,requirements/demo.txt)
$(VENV)/.deps: requirements/demo.txt requirements/dev.txt requirements/nvcc.txt ; $(call install,requirements/dev.txt)

$(LIGHT_BUILT): $(LIGHT_DEPS) $(RECIPE) $(CPP) $(LISTS) ; $(compile)
$(BUILT): $(DEPS) $(RECIPE) $(CPP) $(LISTS) ; $(compile)

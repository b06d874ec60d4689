# Set-up and checks. A machine needs Python 3.10 or newer with pip and venv, and make.
#
#   make test          tests, without the slow ones, in .venv (made on first use)
#   make test-all      all tests
#   make check         format, lint and types
#   make demo          hbdebug sensitivity on the example model; files go to hbdebug-out/
#   make test-lowest   tests with the oldest supported dependencies, on Python 3.10
#   make bench         speed and memory on the example model
#   make clean         remove what the others made
#
# PYTHON=python3.13 chooses the interpreter (.venv is made anew when it changes), LOWEST_PYTHON
# that of test-lowest, PYTEST_ARGS='-k plan' goes to pytest.

PYTHON ?= python3
LOWEST_PYTHON ?= python3.10
PYTEST_ARGS ?=

VENV := .venv
LOWEST := .venv-lowest
BIN := $(VENV)/bin
PIP_INSTALL := -m pip install --quiet --disable-pip-version-check

EXAMPLE := fixtures/textline_cls
MODEL := $(EXAMPLE)/cls_calibrated_model.onnx
CALIB := $(EXAMPLE)/calib

.PHONY: test test-all check demo test-lowest bench clean
.DELETE_ON_ERROR:

test: $(VENV)/.test
	$(BIN)/python -m pytest -m "not slow" $(PYTEST_ARGS)

test-all: $(VENV)/.test
	$(BIN)/python -m pytest $(PYTEST_ARGS)

check: $(VENV)/.dev
	PATH="$(CURDIR)/$(BIN):$$PATH" scripts/check

demo: $(VENV)/.base
	$(BIN)/hbdebug sensitivity $(MODEL) $(CALIB) -o hbdebug-out

test-lowest: $(LOWEST)/.test
	$(LOWEST)/bin/python -m pytest -m "not slow" $(PYTEST_ARGS)

bench: $(VENV)/.base
	$(BIN)/python benchmarks/sensitivity.py $(MODEL) $(CALIB)

clean:
	rm -rf $(VENV) $(LOWEST) build dist hbdebug-out

# One stamp for each state of an environment; a failed step leaves none and is tried again.

INTERPRETER := $(VENV)/.made-by-$(subst /,-,$(PYTHON))
LOWEST_INTERPRETER := $(LOWEST)/.made-by-$(subst /,-,$(LOWEST_PYTHON))

$(INTERPRETER):
	$(PYTHON) -m venv --clear $(VENV)
	touch $@

$(VENV)/.base: $(INTERPRETER) pyproject.toml
	$(BIN)/python $(PIP_INSTALL) --editable .
	touch $@

$(VENV)/.test: $(VENV)/.base
	$(BIN)/python $(PIP_INSTALL) --editable '.[test]'
	touch $@

$(VENV)/.dev: $(VENV)/.test
	$(BIN)/python $(PIP_INSTALL) --editable '.[dev]'
	touch $@

$(LOWEST_INTERPRETER):
	$(LOWEST_PYTHON) -m venv --clear $(LOWEST)
	touch $@

$(LOWEST)/.test: $(LOWEST_INTERPRETER) pyproject.toml tests/lowest.txt
	$(LOWEST)/bin/python $(PIP_INSTALL) --constraint tests/lowest.txt --editable '.[test]'
	touch $@

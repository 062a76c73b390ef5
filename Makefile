# Everything on a fresh machine with git, make and Python 3.11+:  make demo, make test.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt

.PHONY: demo test test-all test-flower test-browser lint types docs unit clean

demo: $(VENV)/.core
	$(BIN)/chronofed demo

test: lint types docs unit

test-all: lint types docs
	$(BIN)/python -m pytest -n 2 --cov --cov-fail-under=90

# Real SuperLink and SuperNode processes, in an environment of their own: Flower wants other versions of some.
test-flower: $(VENV)-flower/.done
	CHRONOFED_TEST_FLOWER=1 FLWR_TELEMETRY_ENABLED=0 OMP_NUM_THREADS=1 \
		$(VENV)-flower/bin/python -m pytest tests/flower

lint: $(VENV)/.dev
	$(BIN)/ruff check
	$(BIN)/ruff format --check

types: $(VENV)/.dev
	$(BIN)/mypy

docs: $(VENV)/.dev
	$(BIN)/python -m sphinx -W --keep-going -q -b html docs docs/_build/html

unit: $(VENV)/.dev
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 3 --dist worksteal -m "not slow and not browser"

# Pages in a real browser: Debian's Chromium (apt install chromium), or another in CHRONOFED_BROWSER.
test-browser: $(VENV)/.browser
	$(BIN)/python -m pytest tests/browser

# A stamp is renewed only when what it depends on changed, so the second call installs nothing.
$(VENV)/.core: pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(PIP) --editable .
	touch $@

$(VENV)/.dev: $(VENV)/.core
	$(PIP) --editable '.[dev]'
	touch $@

$(VENV)-flower/.done: pyproject.toml constraints.txt
	test -x $(VENV)-flower/bin/python || $(PYTHON) -m venv $(VENV)-flower
	$(VENV)-flower/bin/python -m pip install --quiet --disable-pip-version-check \
		--constraint constraints.txt --editable '.[flower,plot]' pytest
	touch $@

$(VENV)/.browser: $(VENV)/.dev
	$(PIP) --editable '.[browser]'
	touch $@

clean:
	rm -rf $(VENV) $(VENV)-flower docs/_build .coverage* .mypy_cache .pytest_cache .ruff_cache

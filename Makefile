# Everything on a fresh machine with git, make and Python 3.11+:  make demo, make test.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
INSTALL := -m pip install --quiet --disable-pip-version-check
PIP := $(BIN)/python $(INSTALL) --constraint constraints.txt
QUICK := -n 2 --dist worksteal -m "not slow and not product and not corpus and not browser"
# The only version of torch that test-oldest and test-newest install: others are large, and rarely at hand.
TORCH := torch==2.13.0

# Compiled sources and tests: the second call is faster.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: demo test test-all test-product test-corpus test-kills test-oldest test-newest test-flower test-ray test-browser hooks lint types docs unit clean

demo: $(VENV)/.core
	$(BIN)/chronofed demo

# The tests, and beside them the other checks one after another; each prints its output when it ends.
test: $(VENV)/.dev
	@echo "Running tests, lint, types and docs in parallel; results follow in about three minutes."
	@$(MAKE) --no-print-directory --jobs 2 --output-sync=target --keep-going unit lint types docs
	@echo "All checks passed."

test-all: lint types docs
	$(BIN)/python -m pytest -n 2 --cov --cov-fail-under=90

# The laws for every combination of parts, of which `make test` tries as many as it takes to meet every part, and long
# variants of its tests.
test-product: $(VENV)/.dev
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 3 --dist worksteal -m "product or slow" --hypothesis-profile thorough

# The lower bounds of pyproject.toml, and the newest releases, in environments of their own. Old releases use
# functions of other packages that are deprecated by now, so such warnings are no errors there.
test-oldest: $(VENV)-oldest/.done
	OMP_NUM_THREADS=1 $(VENV)-oldest/bin/python -m pytest -W ignore::DeprecationWarning $(QUICK)

test-newest: $(VENV)-newest/.done
	OMP_NUM_THREADS=1 $(VENV)-newest/bin/python -m pytest $(QUICK)

# Real SuperLink and SuperNode processes, in an environment of their own: Flower wants other versions of some.
test-flower: $(VENV)-flower/.done
	CHRONOFED_TEST_FLOWER=1 FLWR_TELEMETRY_ENABLED=0 OMP_NUM_THREADS=1 \
		$(VENV)-flower/bin/python -m pytest tests/flower tests/unit/test_flower_hub.py

# Real Ray clusters of three nodes on this machine, in an environment of their own.
test-ray: $(VENV)-ray/.done
	OMP_NUM_THREADS=1 $(VENV)-ray/bin/python -m pytest tests/ray

# Bad inputs, damaged run directories, mutated messages and client stores; `make test` tries some of them.
test-corpus: $(VENV)/.dev
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist worksteal -m corpus tests/corpus/test_bad_inputs.py tests/corpus/test_damaged_runs.py
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist worksteal -m corpus tests/corpus/test_mutated_bytes.py

# Pages in a real browser: Debian's Chromium (apt install chromium), or another in CHRONOFED_BROWSER.
test-browser: $(VENV)/.browser docs
	$(BIN)/python -m pytest -n 2 --dist worksteal tests/browser

# 20 SIGKILLs of each of nine configurations; takes about a quarter of an hour, and may be stopped and started again.
test-kills: $(VENV)/.dev
	$(BIN)/python benchmarks/kills/run.py

# Run lint and types before every commit (.pre-commit-config.yaml).
hooks: $(VENV)/.dev
	$(BIN)/pre-commit install

lint: $(VENV)/.dev
	$(BIN)/ruff check
	$(BIN)/ruff format --check

types: $(VENV)/.dev
	$(BIN)/mypy

docs: $(VENV)/.dev
	$(BIN)/python -m sphinx -W --keep-going -q -b html docs docs/_build/html

unit: $(VENV)/.dev
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest $(QUICK)

# A stamp is renewed only when one of its sources changed, so the second call installs nothing.
$(VENV)/.core: pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(PIP) --editable .
	touch $@

$(VENV)/.dev: $(VENV)/.core
	$(PIP) --editable '.[dev]'
	touch $@

$(VENV)/.browser: $(VENV)/.dev
	$(PIP) --editable '.[browser]'
	touch $@

$(VENV)-oldest/.done: pyproject.toml scripts/oldest.py
	test -x $(VENV)-oldest/bin/python || $(PYTHON) -m venv $(VENV)-oldest
	$(VENV)-oldest/bin/python scripts/oldest.py $(TORCH) > $(VENV)-oldest/constraints.txt
	$(VENV)-oldest/bin/python $(INSTALL) --constraint $(VENV)-oldest/constraints.txt \
		--editable '.[plot,parquet,sweep,track,test]'
	touch $@

$(VENV)-newest/.done: pyproject.toml
	test -x $(VENV)-newest/bin/python || $(PYTHON) -m venv $(VENV)-newest
	$(VENV)-newest/bin/python $(INSTALL) --upgrade --editable '.[plot,parquet,sweep,track,test]' $(TORCH)
	touch $@

$(VENV)-flower/.done: pyproject.toml constraints.txt
	test -x $(VENV)-flower/bin/python || $(PYTHON) -m venv $(VENV)-flower
	$(VENV)-flower/bin/python $(INSTALL) --constraint constraints.txt --editable '.[flower,plot]' pytest
	touch $@

$(VENV)-ray/.done: pyproject.toml constraints.txt
	test -x $(VENV)-ray/bin/python || $(PYTHON) -m venv $(VENV)-ray
	$(VENV)-ray/bin/python $(INSTALL) --constraint constraints.txt --editable '.[ray,sweep]' pytest
	touch $@

clean:
	rm -rf $(VENV) $(VENV)-* docs/_build .coverage* .mypy_cache .pytest_cache .ruff_cache

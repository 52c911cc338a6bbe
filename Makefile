# Everything from a clean clone: Python 3.11 or later, pip and make. A C++ compiler makes it faster but is not needed.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
PIP    := $(BIN)/python -m pip --disable-pip-version-check --quiet

TRAINING_TESTS := tests/contract/test_contract.py tests/contract/test_digits.py tests/methods tests/test_odd_models.py tests/test_training.py tests/test_engines.py tests/test_federation.py

.PHONY: demo test test-browser test-slow docs lint format bench clean

# FedPAC, FedAvg and each site alone on digits that five groups label in their own ways: a table, a curve, a report
demo: $(VENV)/.installed
	$(BIN)/fedpac demo --out demo-runs

# everything, then what trains once more without the native kernels
test: lint
	$(BIN)/python -m pytest -n 2 --dist loadgroup -m "not slow and not browser"
	FEDPAC_NATIVE=0 $(BIN)/python -m pytest -n 2 -m "not slow" $(TRAINING_TESTS)

# the report and the live page in Chromium, which is installed where this is root on Debian or one of its kin
test-browser: $(VENV)/.installed-dev
	@command -v chromium >/dev/null && command -v chromedriver >/dev/null || \
	  { [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null && apt-get update -qq && \
	    DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends chromium chromium-driver >/dev/null; } || \
	  { echo "make test-browser needs chromium and chromedriver: install them, then try again" >&2; exit 1; }
	FEDPAC_BROWSER=1 $(BIN)/python -m pytest -m browser tests/browser

test-slow: $(VENV)/.installed-dev
	$(BIN)/python -m pytest -n 2 --dist loadgroup -m slow

# the documentation site: docs/_build/index.html
docs: $(VENV)/.installed-dev
	$(BIN)/python -m sphinx -q -W --keep-going -b html docs docs/_build

lint: $(VENV)/.installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: $(VENV)/.installed-dev
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# speed as ratios, side by side with Flower, pfl and plain programs: about ten minutes on two quiet cores
bench: $(VENV)/.installed-dev .venv-bench/.installed
	$(BIN)/python -m benchmarks
	$(BIN)/python -m benchmarks.pages

.venv-bench/.installed: benchmarks/requirements-peers.txt
	$(PYTHON) -m venv .venv-bench
	.venv-bench/bin/python -m pip --disable-pip-version-check --quiet install -r $<
	touch $@

clean:
	rm -rf $(VENV) demo-runs build .mypy_cache .pytest_cache .ruff_cache .import_linter_cache .hypothesis

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)

# the stamps say that what is installed fits these files
$(VENV)/.installed: pyproject.toml constraints.txt | $(BIN)/python
	$(PIP) install -c constraints.txt -e .
	touch $@

$(VENV)/.installed-dev: pyproject.toml constraints.txt | $(BIN)/python
	$(PIP) install -c constraints.txt -e ".[dev]"
	touch $@ $(VENV)/.installed

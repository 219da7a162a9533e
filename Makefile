# Works with Python 3.11, make and a package registry; uses uv when it is there.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
ARGS ?=
ROUNDS ?= 5
SECONDS ?= 60
WORKERS ?= auto

.PHONY: install demo test explore check format bench torture fuzz peers clean

install: $(STAMP)

$(STAMP): constraints.txt pyproject.toml
	@if command -v uv >/dev/null 2>&1; then \
	  { [ -x $(BIN)/python ] || uv venv --quiet --python $(PYTHON) $(VENV); } && \
	  uv pip install --quiet --python $(BIN)/python --require-hashes -r constraints.txt && \
	  uv pip install --quiet --python $(BIN)/python --no-deps --no-build-isolation -e . ; \
	else \
	  { [ -x $(BIN)/python ] || $(PYTHON) -m venv $(VENV); } && \
	  $(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r constraints.txt && \
	  $(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e . ; \
	fi
	@touch $(STAMP)

demo: $(STAMP)
	$(BIN)/postroom demo $(ARGS)

test: $(STAMP)
	$(BIN)/python -m pytest -n $(WORKERS) $(ARGS)

explore: $(STAMP)
	$(BIN)/python -m pytest -n $(WORKERS) -m hypothesis --hypothesis-profile=explore $(ARGS)

check: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache

format: $(STAMP)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: $(STAMP)
	$(BIN)/python -m benchmarks $(ARGS)

peers:
	sh scripts/peers.sh

torture: $(STAMP)
	$(BIN)/python -m tests.torture --rounds $(ROUNDS) $(ARGS)

fuzz: $(VENV)/.fuzz
	$(BIN)/python -m tests.fuzz --seconds $(SECONDS) $(ARGS)

$(VENV)/.fuzz: $(STAMP) constraints-fuzz.txt
	@if command -v uv >/dev/null 2>&1; then \
	  uv pip install --quiet --python $(BIN)/python --require-hashes -r constraints-fuzz.txt ; \
	else \
	  $(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r constraints-fuzz.txt ; \
	fi
	@touch $@

clean:
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache dist

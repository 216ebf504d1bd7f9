# The two commands: `make demo` and `make test`. Each sets up .venv first where it is missing or out of date.
PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV   := .venv
BIN    := $(VENV)/bin
export OMP_NUM_THREADS := 1

.PHONY: demo test lint format bench nightly soak clean

demo: $(VENV)/.ready
	$(BIN)/shardlang run examples/llama/llama.shard --nproc 4

test: $(VENV)/.ready
	$(BIN)/pytest -m "not nightly" --numprocesses 2 --dist loadfile

lint: $(VENV)/.ready
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: $(VENV)/.ready
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: $(VENV)/.ready
	$(BIN)/python -m tests.bench

nightly: $(VENV)/.ready
	$(BIN)/pytest -m nightly --hypothesis-profile explore --timeout 3600

soak: $(VENV)/.ready
	$(BIN)/python -m tests.soak 50

clean:
	rm -rf $(VENV) build dist *.egg-info

$(VENV)/.ready: constraints.txt pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --constraint constraints.txt --editable '.[dev]'
	touch $@

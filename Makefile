# Each target does all its own set-up in .venv, from a fresh clone, with Python 3.11 or newer and the package index only.
.PHONY: demo test test-engines fuzz check bench bench-client docs clean

VENV ?= .venv
export SERVETUNE_VENV := $(abspath $(VENV))
BIN := $(VENV)/bin
export SERVETUNE_TEST_CACHE ?= $(CURDIR)/.cache/servetune

demo:  ## start a real engine many times, choose the best configuration, write the report
	@scripts/make-venv.sh local,charts
	@$(BIN)/servetune tune --demo

test:  ## all tests that need no extra engine, with one short real llama.cpp study
	@scripts/make-venv.sh local,charts,dev
	@$(BIN)/coverage erase
	@$(BIN)/coverage run -m pytest -m "not slow and not engine" $(PYTEST)
	@$(BIN)/coverage combine --quiet
	@$(BIN)/python scripts/check-coverage.py

test-engines:  ## slow tests: real engines, large simulations
	@scripts/make-venv.sh local,charts,dev
	@$(BIN)/python -m pytest -m "slow or engine" --timeout 900 $(PYTEST)

fuzz:  ## a million bad answers through the load client's parser (FUZZ="--seed 7": others)
	@scripts/make-venv.sh local,charts,dev
	@$(BIN)/python -m tests.fuzz $(FUZZ)

check:  ## formatting, lint, types, layers, generated documents
	@scripts/make-venv.sh local,charts,dev
	@$(BIN)/ruff format --check --quiet .
	@$(BIN)/ruff check --quiet .
	@$(BIN)/mypy
	@$(BIN)/lint-imports --no-cache
	@$(BIN)/python docs/generate.py --check

bench:  ## the project's own benchmarks, one after the other
	@scripts/make-venv.sh local,charts,dev
	@set -e; for script in bench/*.py; do echo "== $$script"; $(BIN)/python $$script; done

docs:  ## write the generated references
	@scripts/make-venv.sh local,charts,dev
	@$(BIN)/python docs/generate.py

bench-client:  ## load clients against the truth, with whichever rivals $$SERVETUNE_RIVALS names
	@scripts/make-venv.sh local,charts,dev
	@$(BIN)/python -m bench.client.run

clean:
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis .coverage*

# The same commands for people and for CI. Everything happens in .venv; nothing outside this folder is touched.

PYTHON ?= python3
BIN := .venv/bin
PIP := $(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt

.PHONY: setup quickstart check unit test test-process test-others test-exhaustive bench clean

quickstart: .venv/.quickstart
	$(BIN)/headway quickstart

setup: .venv/.setup

# Everything, in two lanes: tests of real processes mostly wait, the others mostly compute.
test: .venv/.setup check
	@$(MAKE) --no-print-directory --jobs=2 --keep-going test-process test-others test-exhaustive

test-process: .venv/.setup
	$(BIN)/python -m pytest tests/process

test-others: .venv/.setup
	@nice -n 10 $(BIN)/python -m pytest --quiet --timeout 300 --ignore=tests/process --ignore=tests/exhaustive

test-exhaustive: .venv/.setup
	@nice -n 10 $(BIN)/python -m pytest --quiet --timeout 1200 tests/exhaustive

# An answer within two minutes.
unit: .venv/.setup check
	$(BIN)/python -m pytest --quiet tests/unit

check: .venv/.setup
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/python -m pytest --quiet tests/test_layers.py

# Side by side with the peers; about two hours. Results are kept in benchmarks/results.
bench: .venv/.bench
	$(BIN)/python benchmarks/start.py
	$(BIN)/python benchmarks/report.py
	$(BIN)/python benchmarks/step.py
	$(BIN)/python benchmarks/save.py
	$(BIN)/python benchmarks/object_store.py
	$(BIN)/python benchmarks/crash_checkpoints.py
	$(BIN)/python benchmarks/recover.py
	$(BIN)/python benchmarks/goodput.py
	$(BIN)/python benchmarks/chaos.py
	$(BIN)/python benchmarks/preempt.py
	$(BIN)/python benchmarks/elastic.py
	$(BIN)/python benchmarks/exact_resume.py
	$(BIN)/python benchmarks/loaders.py
	$(BIN)/python benchmarks/hangs.py
	$(BIN)/python benchmarks/false_alarms.py
	$(BIN)/python benchmarks/ingest.py
	$(BIN)/python benchmarks/data_memory.py

clean:
	rm -rf .venv build dist src/*.egg-info .mypy_cache .ruff_cache

.venv/bin/python:
	$(PYTHON) -m venv .venv

.venv/.quickstart: pyproject.toml constraints.txt | .venv/bin/python
	@echo "installing Headway, PyTorch and scikit-learn into .venv (once; a minute or two)"
	$(PIP) --editable '.[quickstart]'
	@touch $@

.venv/.setup: pyproject.toml constraints.txt | .venv/bin/python
	@echo "installing Headway and everything its tests need into .venv (once; a few minutes)"
	$(PIP) --editable '.[test,check]'
	@touch $@

.venv/.bench: pyproject.toml constraints.txt | .venv/bin/python
	$(PIP) --editable '.[bench]'
	@touch $@

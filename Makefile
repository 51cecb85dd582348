# Everything a newcomer needs: `make demo` to see it, `make test` to trust it, `make help` for the rest.
# Each target does the set-up it needs; nothing outside this directory is touched but system packages (see setup).
SHELL := /bin/bash
.DEFAULT_GOAL := help
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# Many tests wait for agents to notice something: half as many processes again as cores keep the cores busy.
WORKERS ?= $(shell echo $$(( ($$(nproc) * 3 + 1) / 2 )))

.PHONY: help setup system demo test check format soak bench screenshots lock audit clean

help: ## show this list
	@awk -F ':.*## ' '/^[a-z]+:.*## / {printf "  make %-11s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: $(VENV)/.installed system ## install everything into .venv, and system packages where that is allowed

$(VENV)/.installed: pyproject.toml constraints.txt scripts/make-venv
	@scripts/make-venv $(PYTHON) $(VENV)

system:
	@scripts/system-packages

demo: $(VENV)/.installed ## play a guided tour
	@$(BIN)/cheops demo

test: setup ## run all tests, in parallel
	$(BIN)/pytest -n $(WORKERS)

check: $(VENV)/.installed ## style, types, who may import whom, and what is dangerous
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/bandit --quiet --configfile pyproject.toml --recursive src

format: $(VENV)/.installed ## put the code into the one format
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

soak: $(VENV)/.installed ## 10,000 simulated histories and more, a million hostile inputs, the experiments 20 times
	$(BIN)/cheops sim --seeds 10000 --sites 3
	for profile in hostile network crashes moving rules policed; do $(BIN)/cheops sim --seeds 1000 --first 20000 --sites 5 --profile $$profile || exit 1; done
	$(BIN)/cheops sim --seeds 200 --sites 4 --profile long
	$(BIN)/python -m tests.security.fuzz --inputs $${CHEOPS_FUZZ_INPUTS:-1000000}
	$(BIN)/pytest -q tests/agent/test_report.py --repetitions 20 --timeout 3000
	$(BIN)/python -m tests.gateway.chaos --minutes 10
	CHEOPS_TEST_BODY_MB=2000 $(BIN)/pytest -q tests/gateway/replicas/test_bodies.py --timeout 3000

bench: $(VENV)/.installed ## measure, and write docs/benchmarks.md
	$(BIN)/python -m bench

screenshots: setup ## take the pictures of the web interface again, for docs/ui.md
	$(BIN)/python -m tests.ui.pictures

lock: ## pin the newest versions of all dependencies in constraints.txt
	scripts/lock $(PYTHON)

audit: ## look for known vulnerabilities of the pinned dependencies; needs the network
	scripts/audit $(PYTHON)

clean: ## remove what the other targets made
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache build dist
	find src tests bench -name __pycache__ -type d -prune -exec rm -rf {} +

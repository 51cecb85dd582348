# Start with `make demo`; `make help` lists the rest. Each target installs what it needs, into .venv.
# Outside this directory only system packages are installed, and only by targets that depend on `system`.
SHELL := /bin/bash
.DEFAULT_GOAL := help
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
OPENSTACK := .venv-openstack
S3 := .venv-s3
APPLICATIONS := .venv-applications
NODE_RED := .node-red
# Many tests wait for agents, not for the processor: with 2 processes per core the cores are idle a sixth of the time.
WORKERS ?= $(shell echo $$(( $$(nproc) * 3 )))
# Histories of each profile in `make soak`, by the number of sites: 2,000 in all. One with 7 sites takes as long as
# five with 3.
SOAK_PARTS := 3:700 4:550 5:400 6:200 7:150

.PHONY: help setup system demo test apps check format soak bench screenshots lock audit clean

help: ## show this list
	@awk -F ':.*## ' '/^[a-z]+:.*## / {printf "  make %-11s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: $(VENV)/.installed system ## install everything into .venv, and system packages where that is allowed

# What running needs comes first, so that `make demo` need not download the developers' tools.
$(VENV)/.runtime: pyproject.toml requirements.lock scripts/make-venv
	@scripts/make-venv $(PYTHON) $(VENV)

$(VENV)/.installed: $(VENV)/.runtime requirements-dev.lock
	@scripts/make-venv $(PYTHON) $(VENV) dev

system:
	@scripts/system-packages

demo: $(VENV)/.runtime ## install what running needs, then play a guided tour with three sites
	@$(BIN)/cheops demo

# Where this is set, every process that a test starts, and every worker, would compile the sources again.
test: export PYTHONDONTWRITEBYTECODE :=
test: setup ## run all tests, in parallel
	$(BIN)/pytest -n $(WORKERS) --dist worksteal --ignore tests/apps

# In an environment of its own: OpenStack pins what Cheops uses in other versions.
$(OPENSTACK)/.installed: tests/apps/openstack/requirements.txt
	@echo "Installing keystone and glance into $(OPENSTACK) (300 MB)"
	@$(PYTHON) -m venv --clear $(OPENSTACK)
	@$(OPENSTACK)/bin/python -m pip install --quiet --disable-pip-version-check setuptools -r $<
	@touch $@

$(S3)/.installed: tests/apps/rules/requirements.txt
	@echo "Installing moto and boto3 into $(S3) (320 MB)"
	@$(PYTHON) -m venv --clear $(S3)
	@$(S3)/bin/python -m pip install --quiet --disable-pip-version-check -r $<
	@touch $@

$(APPLICATIONS)/.installed: tests/apps/rules/applications-requirements.txt
	@echo "Installing Jupyter Server and Synapse into $(APPLICATIONS) (300 MB)"
	@$(PYTHON) -m venv --clear $(APPLICATIONS)
	@$(APPLICATIONS)/bin/python -m pip install --quiet --disable-pip-version-check -r $<
	@touch $@

# Without optional packages, which need a compiler. A lock file would have the address of a registry in it.
$(NODE_RED)/.installed: tests/apps/rules/node-red/package.json | system
	@echo "Installing Node-RED into $(NODE_RED) (120 MB)"
	@mkdir -p $(NODE_RED) && cp $< $(NODE_RED)
	@npm install --prefix $(NODE_RED) --no-audit --no-fund --no-package-lock --omit=optional --loglevel=error
	@touch $@

apps: setup $(OPENSTACK)/.installed $(S3)/.installed $(APPLICATIONS)/.installed $(NODE_RED)/.installed ## run the tests with real applications: OpenStack, Kubernetes, etcd, git, S3, registries, Alertmanager, Node-RED, Jupyter, Synapse, WebDAV
	$(BIN)/pytest tests/apps $(APPS)

check: $(VENV)/.installed ## check style, types, import rules and known security mistakes
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/bandit --quiet --configfile pyproject.toml --recursive src

format: $(VENV)/.installed ## format the code
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

soak: $(VENV)/.installed ## 10,000 simulated histories and more, a million hostile inputs, the experiments 20 times, an hour of short lives
	$(BIN)/cheops sim --seeds 10000 --sites 3
	for profile in network crashes moving rot joins quiet restored lost clocks rules members reborn remedies kinds texts policed deletions; do \
		for part in $(SOAK_PARTS); do \
			sites=$${part%%:*}; \
			$(BIN)/cheops sim --seeds $${part##*:} --first $${sites}0000 --sites $$sites --profile $$profile || exit 1; \
		done; \
	done
	$(BIN)/cheops sim --seeds 200 --sites 4 --profile long
	$(BIN)/cheops sim --seeds 2000 --sites 3 --profile http
	$(BIN)/cheops sim --seeds 5000 --sites 5 --profile byzantine
	$(BIN)/cheops sim --sites 1000
	$(BIN)/python -m tests.security.fuzz --inputs $${CHEOPS_FUZZ_INPUTS:-1000000}
	$(BIN)/pytest -q tests/agent/test_report.py --repetitions 20 --timeout 3000
	$(BIN)/python -m tests.gateway.chaos --minutes 10
	$(BIN)/python -m tests.agent.status_chaos --minutes 30
	$(BIN)/python -m tests.agent.life_cycles --minutes 60
	CHEOPS_TEST_EDGE=all $(BIN)/pytest -q tests/edge/test_networks.py --timeout 3000
	CHEOPS_TEST_AGENTS=50 $(BIN)/pytest -q tests/edge/test_many_agents.py --timeout 3000
	CHEOPS_TEST_MESH_SITES=1000 $(BIN)/pytest -q tests/sync/test_mesh.py --timeout 3000
	CHEOPS_TEST_HISTORIES=all $(BIN)/pytest -q tests/sim/test_seeds.py --timeout 3000
	CHEOPS_TEST_TEXTS=1000 $(BIN)/pytest -q tests/logic/test_text.py --timeout 3000
	CHEOPS_TEST_BODY_MB=2000 $(BIN)/pytest -q tests/gateway/replicas/test_bodies.py --timeout 3000
	CHEOPS_TEST_LIST_ITEMS=100000 $(BIN)/pytest -q tests/gateway/test_long_lists.py --timeout 3000

bench: $(VENV)/.installed ## measure, and write docs/benchmarks.md
	$(BIN)/python -m bench

screenshots: setup ## take the screenshots of docs/ui.md again
	$(BIN)/python -m tests.ui.screenshots

lock: ## pin the newest versions of all dependencies, with their hashes; needs the network, and some minutes
	scripts/lock $(PYTHON)

audit: ## look for known vulnerabilities in the pinned dependencies; needs the network
	scripts/audit $(PYTHON)

clean: ## remove everything the other targets created
	rm -rf $(VENV) $(OPENSTACK) $(S3) $(APPLICATIONS) $(NODE_RED) .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache build dist
	find src tests bench -name __pycache__ -type d -prune -exec rm -rf {} +

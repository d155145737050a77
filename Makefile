# `make demo`, `make test` and `make docs` need no set-up: each creates .venv if it does not exist.
#
#   PYTHON=python3.12   the interpreter for .venv (3.11 or newer). The default is the system's, if it
#                       is new enough: an interpreter that was compiled without optimisation, as
#                       pyenv does, takes a fifth longer
#   TORCH=any           install any build of torch that pip finds, including CUDA's gigabytes
#   PYTEST_ARGS='-k x'  arguments for pytest
#   TORCH_INDEX=...     for `make lock`: the index that has the hashes of torch's CPU wheels

PYTHON ?= $(shell /usr/bin/python3 -c \
  'import ensurepip, sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && \
  echo /usr/bin/python3 || echo python3)
TORCH ?= cpu
PYTEST_ARGS ?=

VENV := .venv
BIN := $(VENV)/bin
INPUTS := pyproject.toml constraints.txt .ci/torch_build.py

# One BLAS thread: workers and xdist already use every core, and more threads compete for them.
export OMP_NUM_THREADS := 1
export OPENBLAS_NUM_THREADS := 1
export MKL_NUM_THREADS := 1
export PIP_DISABLE_PIP_VERSION_CHECK := 1

# Tests start dozens of interpreters. Compiling seqgc again would take a fifth of each start.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := test
.DELETE_ON_ERROR:
.PHONY: demo test docs soak lint bench format audit lock

demo: $(VENV)/.installed-demo
	$(BIN)/seqgc demo

# pytest comes last, because continuous integration reads its closing line. It uses three processes on
# two cores, because many tests wait for child processes.
test: lint
	$(BIN)/python -m pytest -n 3 --dist worksteal $(PYTEST_ARGS)

# The documentation as a site, in site/.
docs: $(VENV)/.installed-docs
	$(BIN)/python .ci/docs_site.py gather build/pages
	$(BIN)/zensical build --clean --strict
	$(BIN)/python .ci/docs_site.py check site

# Simulated runs with the faults that each seed draws, and the long form of some tests: hours.
# SEEDS=FIRST:END
soak: $(VENV)/.installed-dev
	$(BIN)/python -m tests.simulation --seeds $(or $(SEEDS),0:100000)
	SEQGC_SOAK=1 PYTEST_TIMEOUT=0 $(BIN)/python -m pytest -n 2 --dist worksteal \
	  $$(grep -rlw SOAK tests --include='test_*.py') $(PYTEST_ARGS)

lint: $(VENV)/.installed-dev
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python .ci/prose.py

bench: $(VENV)/.installed-dev
	$(BIN)/python -m pytest tests/benchmarks --benchmark-enable -p no:xdist -s $(PYTEST_ARGS)

# pip-audit has its own environment, so that it does not change the one that it audits. It is strict:
# otherwise it would report no advisories for a package about which it has no data.
audit: $(VENV)/.installed-dev
	@test -x .audit/bin/pip-audit || { $(PYTHON) -m venv .audit && \
	  .audit/bin/python -m pip install --quiet pip-audit; }
	@$(BIN)/python -m pip freeze --exclude-editable | sed 's/+cpu$$//' > .audit/installed.txt
	@.audit/bin/pip-audit --strict --no-deps --disable-pip --progress-spinner off \
	  -r .audit/installed.txt || { \
	  echo 'make audit: failed: advisories, or no data of a package (then nothing is known): see above' >&2; exit 1; }

# The packages that functions install, by version and hash, for the image's Python and all processors.
# The lock is compiled for macOS, where torch has the requirements of its CPU build on Linux: for Linux
# itself the registry's torch requires CUDA's packages.
LOCKS := lambda_handlers/gradient_worker
COMPILE = .lock/bin/uv pip compile --quiet --upgrade --generate-hashes --no-header --no-annotate \
  --no-emit-index-url --constraint constraints.txt --python-version 3.13
CPU := MACOSX_DEPLOYMENT_TARGET=14.0 $(COMPILE) --python-platform aarch64-apple-darwin
TORCH_INDEX ?=

lock:
	@test -x .lock/bin/uv || { $(PYTHON) -m venv .lock && .lock/bin/python -m pip install --quiet uv; }
	$(CPU) $(LOCKS)/requirements.txt --output-file $(LOCKS)/requirements.lock
	$(CPU) $(LOCKS)/requirements-torch.txt --no-emit-package torch \
	  --output-file $(LOCKS)/requirements-torch.lock
	grep '^torch==' constraints.txt > $(LOCKS)/torch.lock
	@test -n '$(TORCH_INDEX)' || echo 'torch.lock has no hashes: make lock TORCH_INDEX=...' >&2
	test -z '$(TORCH_INDEX)' || echo torch | $(COMPILE) --no-deps --default-index '$(TORCH_INDEX)' \
	  --python-platform x86_64-manylinux_2_28 --output-file $(LOCKS)/torch.lock -

format: $(VENV)/.installed-dev
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

$(BIN)/pip:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	  echo 'seqgc needs Python 3.11 or newer: make PYTHON=/path/to/python3.11 ...' >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)

$(VENV)/.installed-demo: EXTRAS := demo
$(VENV)/.installed-dev: EXTRAS := dev,train,demo
$(VENV)/.installed-docs: EXTRAS := docs
$(VENV)/.installed-%: $(INPUTS) | $(BIN)/pip
	$(if $(findstring docs,$*),,$(BIN)/python .ci/torch_build.py --build $(TORCH) --constraints constraints.txt)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[$(EXTRAS)]'
	@touch $@

# `make demo`, `make test` and `make docs` do all set-up: each creates .venv if there is none.
#
#   PYTHON=python3.12   the interpreter that .venv is created with (3.11 or newer); else the system's,
#                       if it is new enough: one that was compiled without optimisation, as pyenv
#                       does, takes a fifth longer
#   TORCH=any           take whatever build of torch pip finds, CUDA's gigabytes included
#   PYTEST_ARGS='-k x'  passed on to pytest
#   TORCH_INDEX=...     of `make lock`: where the hashes of torch's CPU wheels are asked for

PYTHON ?= $(shell /usr/bin/python3 -c \
  'import ensurepip, sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && \
  echo /usr/bin/python3 || echo python3)
TORCH ?= cpu
PYTEST_ARGS ?=

VENV := .venv
BIN := $(VENV)/bin
INPUTS := pyproject.toml constraints.txt .ci/torch_build.py

# One BLAS thread: workers and xdist already use every core, and more threads fight over them.
export OMP_NUM_THREADS := 1
export OPENBLAS_NUM_THREADS := 1
export MKL_NUM_THREADS := 1
export PIP_DISABLE_PIP_VERSION_CHECK := 1

# Tests start dozens of interpreters; each would compile seqgc again, a fifth of what its start takes.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := test
.DELETE_ON_ERROR:
.PHONY: demo test docs soak lint bench format audit lock

demo: $(VENV)/.installed-demo
	$(BIN)/seqgc demo

# pytest comes last: continuous integration reads its closing line. Three processes on two cores:
# many tests wait for processes of their own.
test: lint
	$(BIN)/python -m pytest -n 3 --dist worksteal $(PYTEST_ARGS)

# The documentation as a site, in site/.
docs: $(VENV)/.installed-docs
	$(BIN)/python .ci/docs_site.py gather build/pages
	$(BIN)/zensical build --clean --strict
	$(BIN)/python .ci/docs_site.py check site

# Whole runs with every fault that a seed asks for, and all tests that count farther: hours.
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

# pip-audit has an environment of its own, so that it changes nothing in the one that it looks at.
# Strict: a package that it has no data of is not audited, and it would say that nothing was found.
audit: $(VENV)/.installed-dev
	@test -x .audit/bin/pip-audit || { $(PYTHON) -m venv .audit && \
	  .audit/bin/python -m pip install --quiet pip-audit; }
	@$(BIN)/python -m pip freeze --exclude-editable | sed 's/+cpu$$//' > .audit/installed.txt
	@.audit/bin/pip-audit --strict --no-deps --disable-pip --progress-spinner off \
	  -r .audit/installed.txt || { \
	  echo 'make audit: failed: advisories, or no data of a package (then nothing is known): see above' >&2; exit 1; }

# What functions install, by version and hash, for the image's Python and all processors. On macOS
# torch needs what its CPU build needs on Linux, where the registry's build names CUDA's packages too.
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

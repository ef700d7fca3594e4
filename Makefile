# make demo | check | versions | test | fuzz | parity | lint | docs | bench | speed | package | clean          (PYTHON=... picks the interpreter, VENV=... the folder)

PYTHON ?= python3
VENV ?= .venv

PY := $(VENV)/bin/python
STAMP := $(VENV)/.complete
# If the environment sets this, every process compiles anew all that it imports: 2 s each time.
export PYTHONDONTWRITEBYTECODE :=
PIP := $(PY) -m pip -qq --disable-pip-version-check
# Python compiles what it imports, when it first does. To compile all that is installed takes most of an installation's time.
INSTALL := install --no-compile
WORKERS ?= 2

.DELETE_ON_ERROR:
.PHONY: help demo check versions test fuzz parity lint docs bench speed package clean

help:
	@echo "make demo      train a recurrent network and a Kalman filter by jax.lax.scan and by deeppcr.scan: a minute"
	@echo "make check     run the two-minute part of the tests: scan, gradients, forward, solvers, and the rules of the house"
	@echo "make versions  run those, and what depends on the version of jax: make versions PYTHON=python3.13 VENV=.venv313"
	@echo "make test      run the tests (about six minutes on two cores)"
	@echo "make fuzz      try random programs for SECONDS=60, and print the smallest that fail"
	@echo "make parity    compare schedulers and networks with diffusers and torch, which it installs first (1 GB)"
	@echo "make lint      ruff and mypy"
	@echo "make docs      build the documentation into build/docs"
	@echo "make bench     measure on this machine; writes experiments/results/"
	@echo "make speed     ten cases in which the default must not be slower than jax.lax.scan"
	@echo "make package   build the sdist and the wheel, install each in an environment of its own, and use it there"
	@echo "make clean     remove the environment, and all that was built"

# The stamp is written last, and the environment starts empty each time: an interrupted install is never taken
# for a whole one, and an environment that outlived its pyproject.toml keeps nothing of the old one.
$(STAMP): pyproject.toml
	@$(PYTHON) -c 'import sys; sys.version_info >= (3, 11) or sys.exit("deeppcr needs Python 3.11 or newer; $(PYTHON) is " + sys.version.split()[0] + ". Name another one: make PYTHON=python3.12 ...")'
	@echo "making $(VENV) (once; about a minute)"
	@$(PYTHON) -m venv --clear $(VENV)
	@$(PIP) $(INSTALL) --upgrade 'pip>=25.1' # dependency groups
	@$(PIP) $(INSTALL) --editable '.[experiments]' --group dev
	@touch $@

demo: $(STAMP)
	@$(PY) -m experiments demo

TESTS := $(PY) -m pytest --numprocesses $(WORKERS) --dist worksteal --quiet
# What most changes break, if they break anything: two minutes of CPU time.
CHECKED := tests/drop_in tests/adjoint tests/linear/test_solvers.py tests/linear/test_solve_bidiagonal.py tests/newton \
	tests/layers/test_forward.py tests/test_scan.py tests/test_transformations.py tests/test_bad_input.py tests/test_house.py

check: $(STAMP)
	@$(TESTS) $(CHECKED)

# What reads or rewrites XLA's programs, times them, or chooses by that.
versions: $(STAMP)
	@$(TESTS) $(CHECKED) tests/lower tests/depth tests/planning

test: $(STAMP)
	@$(TESTS)

SECONDS ?= 60

fuzz: $(STAMP)
	@$(PY) -m tests.fuzz --seconds $(SECONDS)

PARITY := $(VENV)/.parity

$(PARITY): $(STAMP)
	@$(PIP) $(INSTALL) --group parity
	@touch $@

parity: $(PARITY)
	@$(PY) -m pytest --numprocesses $(WORKERS) --quiet tests/*/test_*_live.py

lint: $(STAMP)
	@$(VENV)/bin/ruff check .
	@$(VENV)/bin/ruff format --check .
	@$(PY) -m mypy

DOCS := $(VENV)/.docs

$(DOCS): $(STAMP)
	@$(PIP) $(INSTALL) --group docs
	@touch $@

docs: $(DOCS)
	@NO_MKDOCS_2_WARNING=1 $(PY) -m mkdocs build

bench: $(STAMP)
	@$(PY) -m experiments suite

speed: $(STAMP)
	@$(PIP) $(INSTALL) --group benchmark
	@$(PY) -m pytest -p pytest_benchmark.plugin --benchmark-columns=min,median --quiet benchmarks

# Each in an environment of its own, away from the checkout: so that what is missing from it is missed.
package: $(STAMP)
	@rm -rf dist
	@$(PY) -m build --quiet .
	@for built in dist/*.whl dist/*.tar.gz; do \
		$(PY) -m venv --clear --without-pip build/installed && \
		$(PIP) --python build/installed $(INSTALL) $$built && \
		(cd build/installed && bin/python -I -W error ../../.ci/installed.py $$built) || exit 1; \
	done

clean:
	rm -rf $(VENV) build dist .mypy_cache .pytest_cache .ruff_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

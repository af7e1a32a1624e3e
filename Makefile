# Two commands for a stranger: `make digits` runs the main job, `make test` passes the tests.
# Each sets up what it needs in a virtual environment of its own.

PYTHON ?= python3

.PHONY: digits test test-all check docs guides

# The folder of `site/` that `make docs` writes: `make docs VERSION=0.1.0` for a release.
VERSION ?= dev

digits: .venv/train
	.venv/bin/python examples/digits.py --out runs/digits --overwrite

# What is compiled is kept, also where the environment says otherwise: each of some twenty processes
# would take seconds to compile the package and the tests. Installations compile nothing:
# of 32,000 files of the packages most are never imported.
export PYTHONDONTWRITEBYTECODE :=

# A file's tests stay in one process: what they share, such as a trained run, is made once.
PYTEST_RUN = .venv/bin/python -m pytest -q --numprocesses auto --dist loadfile \
	--no-loadscope-reorder --durations 25 --durations-min 1 $(PYTEST)
BACKENDS = tensorflow jax torch

test: $(BACKENDS:%=test-%)

# And what other tests stand for there: examples, documents, benchmarks, browsers, hostile files.
# On JAX and torch in one run, which collects once, shares what is trained and keeps both processes
# at work; TensorFlow's would grow to nine gigabytes each.
test-all: test-tensorflow thorough-tensorflow all-jax all-torch

$(BACKENDS:%=test-%): test-%: .venv/dev
	@echo "== tests on $*"
	KERAS_BACKEND=$* $(PYTEST_RUN)

$(BACKENDS:%=thorough-%): thorough-%: .venv/dev
	@echo "== thorough tests on $*"
	KERAS_BACKEND=$* $(PYTEST_RUN) -m 'thorough and not slow'

$(BACKENDS:%=all-%): all-%: .venv/dev
	@echo "== quick and thorough tests on $*"
	KERAS_BACKEND=$* $(PYTEST_RUN) -m 'not slow'

check: .venv/dev
	.venv/bin/ruff check .
	.venv/bin/ruff format --check .
	.venv/bin/mypy

docs: .venv/docs
	KERAS_BACKEND=jax .venv/bin/python -m docs.tools.build --version $(VERSION)

guides: .venv/docs
	KERAS_BACKEND=jax .venv/bin/python -m docs.tools.guides $(GUIDES)

.venv/train: pyproject.toml
	$(PYTHON) -m venv .venv
	.venv/bin/python -m pip install --quiet --no-compile --editable '.[train]'
	touch $@

.venv/docs: pyproject.toml
	$(PYTHON) -m venv .venv
	.venv/bin/python -m pip install --quiet --no-compile --editable '.[docs]'
	touch $@

# torch first and by version: a plain `torch` brings gigabytes of GPU libraries.
.venv/dev: pyproject.toml
	$(PYTHON) -m venv .venv
	.venv/bin/python -m pip install --quiet --no-compile torch==2.13.0
	.venv/bin/python -m pip install --quiet --no-compile --editable '.[all,dev,executorch,coreml]'
	# KerasHub's own tests of backbones; without tensorflow-text, half a gigabyte that no ViT needs.
	.venv/bin/python -m pip install --quiet --no-compile kagglehub regex grain portpicker
	.venv/bin/python -m pip install --quiet --no-compile --no-deps keras-hub==0.32.0
	touch $@

# Every target works on a fresh clone: the environment is made in .venv first, and reused afterwards.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
BENCH_STAMP := $(VENV)/.installed-bench
# Vendor environments are large and cannot share ours; they are cached outside the checkout.
ENVS ?= $(or $(XDG_CACHE_HOME),$(HOME)/.cache)/portwright/envs
# Its interpreter; make csx-env comes before.
CSX_PYTHON = $(shell PORTWRIGHT_ENVS=$(ENVS) $(BIN)/portwright env csx 2> /dev/null | sed 's/.*: //')
ESTIMATOR := $(ENVS)/tf-2.15.1
export PIP_DISABLE_PIP_VERSION_CHECK := 1

# TensorFlow 2.15, the last one with tf.estimator, exists for Python 3.9 to 3.11.
ESTIMATOR_PYTHON ?= $(PYTHON)

.PHONY: help demo test test-cluster cluster-programs test-estimator test-gpu test-vendor test-vendor-core test-vendor-e2e test-vendor-fidelity test-vendor-sdk csx-env estimator-env lint format docs bench clean

help:
	@echo "make demo         check, port, prove, lower and train a plain PyTorch script"
	@echo "make test         the tests"
	@echo "make test-vendor  the tests that ask Cerebras's own SDK (installs it, 6 GB, outside the checkout)"
	@echo "make test-cluster the tests on a real SLURM with containers (installs slurm-wlm, munge, charliecloud, shellcheck)"
	@echo "make test-estimator  the tests beside the real tf.estimator (installs TensorFlow 2.15, 1.3 GB, outside the checkout)"
	@echo "make lint         ruff and mypy"
	@echo "make docs         write the generated pages anew"
	@echo "make bench        the benchmarks, peers beside us in the same run"

$(STAMP): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(None if (3, 10) <= sys.version_info < (3, 14) else "Portwright needs Python 3.10 to 3.13; this is %s. Say which one: make PYTHON=python3.11" % sys.version.split()[0])'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install -q -c constraints.txt torch
	$(BIN)/pip install -q -c constraints.txt -e '.[torch,dev]'
	# tf-keras asks for the large `tensorflow`; its CPU build serves as well, and pip cannot be told.
	$(BIN)/pip install -q -c constraints.txt tensorflow-cpu
	$(BIN)/pip install -q -c constraints.txt --no-deps tf-keras
	@touch $(STAMP)

$(BENCH_STAMP): $(STAMP)
	$(BIN)/pip install -q -c constraints.txt -e '.[torch,bench]'
	@touch $(BENCH_STAMP)

# Quick where it is whole already; mends what a killed call left.
csx-env: $(STAMP)
	PORTWRIGHT_ENVS=$(ENVS) $(BIN)/portwright env csx

$(ESTIMATOR)/.installed:
	@$(ESTIMATOR_PYTHON) -c 'import sys; sys.exit(None if (3, 9) <= sys.version_info < (3, 12) else "TensorFlow 2.15 needs Python 3.9 to 3.11; this is %s. Say which one: make ESTIMATOR_PYTHON=python3.11" % sys.version.split()[0])'
	$(ESTIMATOR_PYTHON) -m venv --clear $(ESTIMATOR)
	$(ESTIMATOR)/bin/pip install -q tensorflow-cpu==2.15.1
	@touch $@

estimator-env: $(ESTIMATOR)/.installed

# Beside the real tf.estimator, in an environment of its own.
test-estimator: $(STAMP) $(ESTIMATOR)/.installed
	PORTWRIGHT_TF_ESTIMATOR=$(ESTIMATOR)/bin/python $(BIN)/python -m pytest -q tests/estimator

demo: $(STAMP)
	PORTWRIGHT_ENVS=$(ENVS) $(BIN)/python examples/demo.py

test: $(STAMP)
	$(BIN)/python -m pytest -q -n auto --maxprocesses 4 --dist worksteal tests --ignore tests/vendor --ignore tests/estimator --ignore tests/cluster -m 'not vendor'

# A real SLURM of a few nodes on this host, and jobs in containers.
CLUSTER_PACKAGES := slurm-wlm munge charliecloud shellcheck
CLUSTER_PROGRAMS := slurmctld slurmd munged ch-run shellcheck ldd

cluster-programs:
	@PATH="$$PATH:/usr/sbin:/sbin"; missing=; for program in $(CLUSTER_PROGRAMS); do command -v $$program > /dev/null || missing="$$missing $$program"; done; \
	if [ -z "$$missing" ]; then exit 0; fi; \
	command -v apt-get > /dev/null || { echo "test-cluster misses$$missing, and there is no apt-get here: install $(CLUSTER_PACKAGES) by your system's own means" >&2; exit 1; }; \
	[ "$$(id -u)" = 0 ] || { echo "test-cluster misses$$missing: as root, apt-get install $(CLUSTER_PACKAGES)" >&2; exit 1; }; \
	apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $(CLUSTER_PACKAGES) > /dev/null

test-cluster: $(STAMP) cluster-programs
	$(BIN)/python -m pytest -q -n 2 --dist loadfile --no-loadscope-reorder tests/cluster

test-gpu: $(STAMP)
	$(BIN)/python -m pytest -q tests/gpu

# What users run in the SDK's environment, under its torch 2.4. job/ has no torch, and the same Python tests it in `make test`;
# streaming's C kernel and its memory and files know nothing of a torch's release.
CORE := tests/unit/runtime tests/unit/watching tests/unit/losses tests/unit/targets/test_csx_target.py \
	$(addprefix tests/unit/layers/test_,$(addsuffix .py,attention blocks embedding masks norms positions))

# The first two do not depend on torch's version; several stages need torch 2.13, which test_pipelined_old_torch.py holds there; and
# tests/vendor/test_stream_vendor.py streams data to a training under the SDK itself.
NOT_CORE := streaming/test_native_* streaming/test_host_* pipelined/test_* test_stream_data.py

test-vendor-core: csx-env
	OMP_NUM_THREADS=1 PYTHONPATH=$(CURDIR)/src $(CSX_PYTHON) -m pytest -q -p no:cacheprovider $(CORE) $(addprefix --ignore-glob=tests/unit/runtime/,$(NOT_CORE))

test-vendor: test-vendor-core test-vendor-fidelity test-vendor-sdk test-vendor-e2e

# Our table held against the front end's verdicts: the longest part, and it shares nothing with the rest.
test-vendor-fidelity: $(STAMP) csx-env
	OMP_NUM_THREADS=1 PORTWRIGHT_ENVS=$(ENVS) PYTHONPATH=$(CURDIR)/src $(CSX_PYTHON) -m pytest -q -p no:cacheprovider tests/vendor/test_fidelity.py

test-vendor-sdk: $(STAMP) csx-env
	OMP_NUM_THREADS=1 PORTWRIGHT_ENVS=$(ENVS) PYTHONPATH=$(CURDIR)/src $(CSX_PYTHON) -m pytest -q -p no:cacheprovider tests/vendor --ignore tests/vendor/test_fidelity.py

# From a user's environment, which goes over to the SDK's.
test-vendor-e2e: $(STAMP) csx-env
	PORTWRIGHT_ENVS=$(ENVS) $(BIN)/python -m pytest -q -m vendor tests/e2e

lint: $(STAMP)
	$(BIN)/python tools/make_docs.py docs --check
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(STAMP)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

docs: $(STAMP)
	$(BIN)/python tools/make_docs.py docs

bench: $(BENCH_STAMP)
	@status=0; for script in $(filter-out benchmarks/measure.py,$(wildcard benchmarks/*.py)); do echo "== $$script"; $(BIN)/python $$script --json benchmarks/results/$$(basename $$script .py).json || status=1; done; exit $$status

clean:
	rm -rf $(VENV) model_dir .pytest_cache .mypy_cache .ruff_cache

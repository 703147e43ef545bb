# Two commands do everything on a fresh machine: `make demo` and `make test`.
PYTHON ?= python3
BIN := .venv/bin
DATA := $(or $(WATTLINE_DATA),../shared/data)

.PHONY: install demo compare docs test check check-fusion check-deciding check-rest kernels system-packages bench \
  lint lint-types lint-style clean

.venv/.ok: pyproject.toml
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install -q --disable-pip-version-check -e '.[report,service]'
	$(BIN)/wattline compile
	touch $@

.venv/.ok-torch: .venv/.ok Makefile
	$(BIN)/python -m pip install -q --disable-pip-version-check torch==2.13.0
	touch $@

.venv/.ok-test: .venv/.ok-torch
	$(BIN)/python -m pip install -q --disable-pip-version-check -e '.[test]'
	touch $@

# Wattline and PyTorch in .venv; then `. .venv/bin/activate`.
install: .venv/.ok-torch

# The main job: the service with simulated GPUs, and twelve real trainings under Wattline and under FIFO.
demo: .venv/.ok-torch
	$(BIN)/python demo/run.py

# A synthetic trace under every policy, as a table and as a page.
compare: .venv/.ok
	$(BIN)/wattline compare --trace synth:count=1000,seed=1,load=0.95,gpus_total=64 --cluster 8xa100:8 \
	  --models library --draw-models --policies all --jobs 2 --html out/compare.html
	@echo "open out/compare.html"

# The site of the documents, with a reference generated from the code; needs no network once installed.
docs: .venv/.ok-test
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet
	@echo "open out/site/index.html"

# Everything, the slow tests and the style included; a third worker for two cores, because many tests wait.
test: system-packages kernels lint
	HYPOTHESIS_PROFILE=test $(BIN)/python -m pytest -n 3 --dist worksteal --durations=10

# Browser and compilers, where this user may install them; see the script.
system-packages:
	./scripts/install-system-packages

# What takes seconds, in parts that run at once: only one part imports PyTorch, whereas every worker of
# pytest-xdist would import everything.
check: .venv/.ok-test
	$(MAKE) --no-print-directory -j 3 --keep-going --output-sync=target \
	  kernels lint-types lint-style check-fusion check-deciding check-rest

FUSION := tests/fusion tests/train tests/cli/models/test_fuse.py
DECIDING := tests/policy tests/placement tests/optimize tests/papers tests/models tests/backend

check-fusion: kernels
	$(BIN)/python -m pytest -m 'not slow' $(FUSION)

check-deciding: kernels
	$(BIN)/python -m pytest -m 'not slow' $(DECIDING)

check-rest: kernels
	$(BIN)/python -m pytest -m 'not slow' $(addprefix --ignore=,$(FUSION) $(DECIDING))

# Once, for all processes that run tests.
kernels: .venv/.ok-test
	$(BIN)/wattline compile

# Types take most of the time; style and layers are checked beside them.
lint: .venv/.ok-test
	$(MAKE) --no-print-directory -j 2 --output-sync=target lint-types lint-style

lint-types:
	$(BIN)/mypy

lint-style:
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports

# Every figure of benchmarks/record.md; needs the public data.
bench: .venv/.ok-test
	$(BIN)/python benchmarks/anchors.py
	$(BIN)/python benchmarks/references.py
	$(BIN)/python benchmarks/held_out.py
	$(BIN)/python benchmarks/queueing.py
	$(BIN)/python benchmarks/allocator.py
	$(BIN)/python benchmarks/powerflow.py
	$(BIN)/python benchmarks/synergy.py
	$(BIN)/python benchmarks/profiling.py
	$(BIN)/python benchmarks/page_sizes.py
	$(BIN)/python benchmarks/andreas.py
	$(BIN)/python benchmarks/andreas_traces.py
	$(BIN)/python benchmarks/zeus.py
	$(BIN)/python benchmarks/session.py
	$(BIN)/python benchmarks/fuse_policy.py
	$(BIN)/python benchmarks/fusion.py
	$(BIN)/python benchmarks/fusion.py --curve
	$(BIN)/python benchmarks/fusion_tuning.py
	$(BIN)/python benchmarks/lora_sweep.py
	$(BIN)/python benchmarks/service_load.py submit
	$(BIN)/python benchmarks/service_load.py queue
	$(BIN)/python benchmarks/service_load.py soak
	$(BIN)/python benchmarks/real_vs_simulated.py
	$(BIN)/python benchmarks/speed.py
	$(BIN)/python benchmarks/speed.py --growth

clean:
	rm -rf .venv out .pytest_cache .mypy_cache .ruff_cache .hypothesis

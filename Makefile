# Two commands do everything on a fresh machine: `make demo` and `make test`.
PYTHON ?= python3
BIN := .venv/bin
DATA := $(or $(WATTLINE_DATA),../shared/data)

.PHONY: demo compare test check system-packages bench lint clean

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

# The main job: the service with simulated GPUs, and twelve real trainings under Wattline and under FIFO.
demo: .venv/.ok-torch
	$(BIN)/python demo/run.py

# A synthetic trace under every policy, as a table and as a page.
compare: .venv/.ok
	$(BIN)/wattline compare --trace synth:count=1000,seed=1,load=0.95,gpus_total=64 --cluster 8xa100:8 \
	  --models library --draw-models --policies all --jobs 2 --html out/compare.html
	@echo "open out/compare.html"

# Everything, the slow tests and the style included.
test: system-packages .venv/.ok-test lint
	$(BIN)/wattline compile # once, for both workers
	HYPOTHESIS_PROFILE=test $(BIN)/python -m pytest -n 2 --dist worksteal --durations=10

# Browser and compilers, where this user may install them; see the script.
system-packages:
	./scripts/install-system-packages

# What takes seconds.
check: .venv/.ok-test lint
	$(BIN)/python -m pytest -n 2 --dist worksteal -m 'not slow'

lint: .venv/.ok-test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
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

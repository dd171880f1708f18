# make serve   set up and serve the default model on port 8000      make serve PORT=9000 MODEL=/path/to/model
# make test    set up and run the tests                             make soak: the long suites in full
PYTHON ?= python3
TORCH ?= torch==2.13.0
# Index for torch alone. Empty: pip's own. On Linux that may be a CUDA build of several GB; the README says how to choose.
TORCH_INDEX_URL ?=
HOST ?= 127.0.0.1
PORT ?= 8000
MODEL ?=
# Requests for benchmarks/placement.py: Mooncake's conversation trace, JSON lines.
TRACE ?= ../shared/traces/conversation_trace.jsonl
ARGS ?=
# Virtual environment with vLLM for make vllm; made if missing, several GB.
VLLM_ENV ?= ../vllm-env
# Virtual environments with LlamaIndex, litellm and lm-eval for make clients; made if missing, about 1 GB.
CLIENTS_ENV ?= ../clients-env
# Virtual environment with sglang-router and vllm-router for make bench-gateway; made if missing.
ROUTERS_ENV ?= ../routers-env

BIN := .venv/bin
RUNTIME := .venv/.runtime
TESTING := .venv/.testing
SOURCES := $(wildcard pyproject.toml constraints.txt)

.PHONY: serve test setup lint format soak bench bench-gateway evaluate clients vllm clean
.DELETE_ON_ERROR:

serve: $(RUNTIME)
	@$(BIN)/atomesh serve $(MODEL) --host $(HOST) --port $(PORT) $(ARGS)

test: $(TESTING)
	$(BIN)/python -m pytest $(ARGS)

setup: $(RUNTIME)

soak: $(TESTING)
	$(BIN)/python -m pytest -m "soak or not soak" --soak $(ARGS)

bench: $(TESTING)
	$(BIN)/python benchmarks/engine.py $(or $(MODEL),smollm2-135m-instruct) --write docs/results.md
	$(BIN)/python benchmarks/attention.py --write docs/results.md
	$(BIN)/python benchmarks/frontend.py --write docs/results.md
	$(BIN)/python benchmarks/kv_transfer.py --write docs/results.md
	$(BIN)/python benchmarks/interference.py --write docs/results.md
	$(BIN)/python benchmarks/prefix_fetch.py --write docs/results.md
	$(BIN)/python benchmarks/kv_index.py --write docs/results.md
	$(BIN)/python benchmarks/placement_decision.py --write docs/results.md
	$(BIN)/python benchmarks/placement.py --trace $(TRACE) --processes 2 --write docs/results.md
	$(BIN)/python benchmarks/placement_robustness.py --trace $(TRACE) --processes 2 --write docs/results.md
	$(BIN)/python benchmarks/placement_live.py --trace $(TRACE) --write docs/results.md

bench-gateway: $(TESTING)
	$(BIN)/python benchmarks/gateway.py --routers $(ROUTERS_ENV) $(ARGS) --write docs/results.md
	$(BIN)/python benchmarks/routing.py --routers $(ROUTERS_ENV) --trace $(TRACE) --write docs/results.md

evaluate: $(TESTING)
	$(BIN)/python benchmarks/evaluate.py $(MODEL) $(ARGS)

clients: $(TESTING)
	$(BIN)/python tools/clients_live.py --environments $(CLIENTS_ENV) --vllm $(VLLM_ENV) $(ARGS)

vllm: $(TESTING)
	$(BIN)/python tools/vllm_live.py --environment $(VLLM_ENV) $(ARGS)

lint: $(TESTING)
	$(BIN)/ruff check src tests benchmarks tools
	$(BIN)/ruff format --check src tests benchmarks tools
	$(BIN)/mypy

format: $(TESTING)
	$(BIN)/ruff format src tests benchmarks tools
	$(BIN)/ruff check --fix src tests benchmarks tools

$(RUNTIME): $(SOURCES) tools/install.py
	@$(PYTHON) tools/install.py --torch "$(TORCH)" --torch-index-url "$(TORCH_INDEX_URL)"
	@touch $@

$(TESTING): $(RUNTIME)
	@$(PYTHON) tools/install.py --torch "$(TORCH)" --torch-index-url "$(TORCH_INDEX_URL)" --extra test
	@touch $@

clean:
	rm -rf .venv build src/*.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis

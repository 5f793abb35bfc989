# SPDX-License-Identifier: Apache-2.0
# Every target does its own set-up: in a fresh clone, `make demo` and `make test` are all there is to type.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready

.PHONY: demo test lint bench build proto grammar venv clean

venv: $(READY)

$(READY): pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
	  || { echo "$(PYTHON) is older than 3.11; name a newer one: make PYTHON=python3.12 ..."; exit 1; }
	@$(PYTHON) -m venv $(VENV) || { echo "no venv module: on Debian, apt-get install python3-venv"; exit 1; }
	$(BIN)/python -m pip install --quiet --upgrade 'pip>=25.1'
	$(BIN)/python -m pip install --quiet --editable '.[sandbox]' --group dev
	@touch $@

demo: $(READY)
	$(BIN)/dra-sandbox demo

test: $(READY)
	$(BIN)/python -m pytest

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

bench: $(READY)
	$(BIN)/python -m tests.bench.prepare
	$(BIN)/python -m tests.bench.prepare --mig
	$(BIN)/python -m tests.bench.cel
	$(BIN)/python -m tests.bench.allocation
	$(BIN)/python -m tests.bench.dryrun

build: $(READY)
	$(BIN)/python -m build --outdir dist .

# The lowest version that the runtime dependencies allow, so that the generated code runs with all of them.
proto: $(READY)
	$(PYTHON) -m venv $(VENV)/proto
	$(VENV)/proto/bin/python -m pip install --quiet 'grpcio-tools==1.74.*'
	$(VENV)/proto/bin/python -m grpc_tools.protoc -I. --python_out=. --pyi_out=. kubeletplugin/protocol/*.proto

# The tables of CEL's parser, after an upgrade of celpy or lark.
grammar: $(READY)
	$(BIN)/python -m dra_driver.cel.make_tables

clean:
	rm -rf $(VENV) build dist .sandbox

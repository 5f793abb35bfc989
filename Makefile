# SPDX-License-Identifier: Apache-2.0
# Every target does its own set-up: in a fresh clone, `make demo` and `make test` are all there is to type.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
IMAGE_TOOLS := $(VENV)/image

.PHONY: demo test lint docs bench build release proto grammar lock sbom scan venv clean

venv: $(READY)

$(READY): pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
	  || { echo "$(PYTHON) is older than 3.11; name a newer one: make PYTHON=python3.12 ..."; exit 1; }
	@$(PYTHON) -m venv $(VENV) || { echo "no venv module: on Debian, apt-get install python3-venv"; exit 1; }
	$(BIN)/python -m pip install --quiet --upgrade 'pip>=25.1'
	$(BIN)/python -m pip install --quiet --editable '.[all]' --group dev
	@touch $@

demo: $(READY)
	$(BIN)/dra-sandbox demo

test: $(READY)
	$(BIN)/python -m pytest

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo

docs: $(READY)
	$(BIN)/python -m tests.docs.tables

bench: $(READY)
	$(BIN)/python -m tests.bench.prepare
	$(BIN)/python -m tests.bench.prepare --mig
	$(BIN)/python -m tests.bench.cel
	$(BIN)/python -m tests.bench.allocation
	$(BIN)/python -m tests.bench.dryrun
	$(BIN)/python -m tests.bench.live
	$(BIN)/python -m tests.bench.packing
	$(BIN)/python -m tests.bench.scale --nodes 100

build: $(READY)
	$(BIN)/python -m build --outdir dist .

# Everything that is published of a version, in dist/. Nothing is sent anywhere. SIGN_KEY signs the chart (a key of gpg).
release: $(READY)
	@test -n '$(RELEASE_URL)' || { echo "say where dist/ will be published: make release RELEASE_URL=https://..."; exit 1; }
	rm -rf dist
	SOURCE_DATE_EPOCH=$$(git log -1 --format=%ct) $(MAKE) build sbom
	SOURCE_DATE_EPOCH=$$(git log -1 --format=%ct) $(BIN)/python release.py --folder dist --url '$(RELEASE_URL)' \
	  $(if $(SIGN_KEY),--sign-key '$(SIGN_KEY)')

# The image's packages and what builds it, pinned by hash: the base dependencies and the build backend of pyproject.toml.
lock: $(IMAGE_TOOLS)/.ready
	UV_CUSTOM_COMPILE_COMMAND='make lock' $(IMAGE_TOOLS)/bin/uv pip compile -q pyproject.toml $(LOCKED) -o requirements.lock
	$(BIN)/python -c 'import tomllib; print(*tomllib.load(open("pyproject.toml", "rb"))["build-system"]["requires"], sep="\n")' \
	  | UV_CUSTOM_COMPILE_COMMAND='make lock' $(IMAGE_TOOLS)/bin/uv pip compile -q - $(LOCKED) -o requirements-build.lock
LOCKED := --universal --python-version 3.11 --generate-hashes --no-annotate --no-strip-extras

sbom: $(IMAGE_TOOLS)/.ready
	mkdir -p dist
	$(PYTHON) -m venv --clear --without-pip build/sbom
	$(BIN)/python -m pip --python build/sbom/bin/python install -q --require-hashes -r requirements.lock
	$(IMAGE_TOOLS)/bin/cyclonedx-py environment --pyproject pyproject.toml --output-reproducible -o dist/sbom.cdx.json build/sbom/bin/python

$(IMAGE_TOOLS)/.ready: $(READY)
	$(PYTHON) -m venv --without-pip $(IMAGE_TOOLS)
	$(BIN)/python -m pip --python $(IMAGE_TOOLS)/bin/python install --quiet --no-compile --group image
	@touch $@

scan: $(READY)
	$(PYTHON) -m venv $(VENV)/scan
	$(VENV)/scan/bin/python -m pip install -q checkov==3.3.30 pip-audit==2.10.1
	PATH="$(CURDIR)/$(VENV)/scan/bin:$$PATH" $(BIN)/python -m pytest tests/test_scans.py tests/test_image.py
	@echo "pip-audit of requirements.lock"
	@$(VENV)/scan/bin/pip-audit --strict --disable-pip --require-hashes -r requirements.lock \
	  || { echo "pip-audit found a vulnerability (a table above names it), or could not ask https://pypi.org/pypi for"; \
	       echo "advisories (an error above): then nothing is known of the packages; run it where PyPI is reached"; exit 1; }

# The lowest version that the runtime dependencies allow, so that the generated code runs with all of them.
proto: $(READY)
	$(PYTHON) -m venv --without-pip $(VENV)/proto
	$(BIN)/python -m pip --python $(VENV)/proto install --quiet --no-compile 'grpcio-tools==1.74.*'
	$(VENV)/proto/bin/python -m grpc_tools.protoc -I. --python_out=. --pyi_out=. kubeletplugin/protocol/*.proto

# The tables of CEL's parser, after an upgrade of celpy or lark.
grammar: $(READY)
	$(BIN)/python -m tests.scheduler.cel.tables

clean:
	rm -rf $(VENV) build dist .sandbox

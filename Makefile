# SPDX-License-Identifier: Apache-2.0
# Every target does its own set-up: in a fresh clone, `make demo` and `make test` are all there is to type.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
BYTECODE := $(VENV)/.bytecode
LOCK_TOOLS := $(VENV)/lock
SBOM_TOOLS := $(VENV)/sbom
DIST := dist
VERSION = $(shell sed -n 's/^__version__ = "\(.*\)"/\1/p' dra_driver/__init__.py)
# Where the repository is (pyproject.toml), and the files of a release: empty as long as no address is known.
REPOSITORY = $(shell sed -n 's/^repository = "\(.*\)"/\1/p' pyproject.toml)
RELEASE_URL = $(if $(REPOSITORY),$(REPOSITORY)/releases/download/v$(VERSION))

.PHONY: demo test test-unit coverage lint docs golden site bench bench-compare build release chart krew manuals image image-index push-chart version \
  subjects tools proto lock sbom scan venv clean

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

# All tests, or those of some levels: make test LEVELS='node or cluster'. Many tests wait for processes, so there are more
# workers than processors. Temporary files are in memory if there is enough.
WORKERS ?= 8
test test-unit: export TMPDIR := $(or $(TMPDIR),$(shell .ci/memory))
test: $(BYTECODE)
	$(BIN)/python -m pytest -n $(WORKERS) $(if $(LEVELS),-m '$(LEVELS)')

# In a fresh clone, every worker would compile all tests. What is wrong in them is told by the run itself.
$(BYTECODE): $(READY)
	-@$(BIN)/python -m pytest -n 0 --collect-only -qq >/dev/null
	@touch $@

test-unit: $(READY)
	$(BIN)/python -m pytest -m unit

# The lines and branches that the unit tests execute, of all packages or of some, for which their own tests are run:
# make coverage PACKAGES='kubeletplugin dra_driver/gpu'. Measuring takes three times as long.
coverage: $(READY)
	$(BIN)/python -m pytest -m unit --cov-report=term \
	  $(or $(foreach package,$(PACKAGES),--cov=$(package) tests/$(package:dra_driver/%=%)),--cov)

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo

# Newer answers of Kubernetes, from a folder: make golden FROM=DIR (tests/golden/refresh.py).
golden: $(READY)
	@test -n '$(FROM)' || { echo "say where the answers are: make golden FROM=DIR"; exit 1; }
	$(BIN)/python -m tests.golden.refresh '$(FROM)'

docs: $(READY)
	$(BIN)/python -m tests.docs.tables

# The site of the documentation, in build/site. It loads nothing from other servers: Mermaid, which draws the pictures, comes
# from npm as one file.
SITE := $(VENV)/site
MERMAID := 11.17.2
MERMAID_SHA256 := 6ad2f42c3fc26bbf9e45cbb6d11898972573ea52b33a5f4ff51952899f950ffd
site: $(SITE)/.ready
	rm -rf build/pages && mkdir -p build/pages && cp -r docs/. build/pages
	install -D -m 644 -t build/pages/assets packaging/site/extra.css $(SITE)/mermaid.min.js
	NO_MKDOCS_2_WARNING=1 $(SITE)/bin/mkdocs build --clean

$(SITE)/.ready: pyproject.toml Makefile
	$(PYTHON) -m venv $(SITE)
	$(SITE)/bin/python -m pip install --quiet 'pip>=25.1'
	$(SITE)/bin/python -m pip install --quiet --no-compile --group site
	@command -v npm >/dev/null || { echo "make site needs npm, for Mermaid: on Debian, apt-get install npm"; exit 1; }
	npm pack --silent --pack-destination $(SITE) mermaid@$(MERMAID)
	echo '$(MERMAID_SHA256)  $(SITE)/mermaid-$(MERMAID).tgz' | sha256sum --check --quiet
	tar -xzOf $(SITE)/mermaid-$(MERMAID).tgz package/dist/mermaid.min.js > $(SITE)/mermaid.min.js
	@touch $@

bench: $(READY)
	$(BIN)/python -m tests.bench.prepare
	$(BIN)/python -m tests.bench.prepare --mig
	$(BIN)/python -m tests.bench.budget
	$(BIN)/python -m tests.bench.start
	$(BIN)/python -m tests.bench.cel
	$(BIN)/python -m tests.bench.allocation
	$(BIN)/python -m tests.bench.dryrun
	$(BIN)/python -m tests.bench.live
	$(BIN)/python -m tests.bench.packing
	$(BIN)/python -m tests.bench.scale --nodes 100

# The costs of this tree beside those of another commit: make bench-compare BASE=main. SHORT=1 is what CI runs.
bench-compare: $(READY)
	$(BIN)/python -m tests.bench.compare $(if $(BASE),--base '$(BASE)') $(if $(SHORT),--short)

build: $(READY)
	$(BIN)/python -m build --outdir '$(DIST)' .

# Everything that is published of a version, in dist/. Nothing is sent anywhere.
release: export SOURCE_DATE_EPOCH := $(or $(SOURCE_DATE_EPOCH),$(shell git log -1 --format=%ct))
release: $(READY)
	@test -n '$(RELEASE_URL)' || { echo "say where $(DIST)/ will be published: make release RELEASE_URL=https://...";  \
	  echo "or set repository in pyproject.toml"; exit 1; }
	rm -rf '$(DIST)'
	$(MAKE) build
	$(MAKE) chart krew manuals sbom
	cd '$(DIST)' && sha256sum -- *.whl *.tar.gz *.tgz *.json *.yaml > SHA256SUMS

# The packaged chart. SIGN_KEY signs it with a key of KEYRING, a file that `gpg --export-secret-keys` wrote. Helm 4 writes
# the times of the files into the package: with all times equal, the same commit gives the same package.
chart:
	rm -rf build/chart && mkdir -p build/chart && cp -r charts/dra-driver-gpu build/chart
	find build/chart -exec touch --date=@$${SOURCE_DATE_EPOCH:-0} {} +
	helm package build/chart/dra-driver-gpu --destination '$(DIST)' $(if $(SIGN_KEY),--sign --key '$(SIGN_KEY)' --keyring '$(KEYRING)')

# The kubectl plugin for krew: an archive with the wheel of dist/, and its manifest.
krew: FILES := build/krew
krew: NAME := dra-dryrun-$(VERSION).tar.gz
krew: WHEEL := dra_driver_gpu-$(VERSION)-py3-none-any.whl
krew:
	@test -f '$(DIST)/$(WHEEL)' || { echo "$(DIST)/$(WHEEL) is missing: run make build"; exit 1; }
	rm -rf $(FILES) && mkdir -p $(FILES)
	install -m 644 LICENSE '$(DIST)/$(WHEEL)' $(FILES)
	sed 's/VERSION/$(VERSION)/g; s/WHEEL/$(WHEEL)/g; /^# `make/d' packaging/krew/kubectl-dra_dryrun > $(FILES)/kubectl-dra_dryrun
	chmod 755 $(FILES)/kubectl-dra_dryrun
	$(ARCHIVE) -C $(FILES) . | gzip -n > '$(DIST)/$(NAME)'
	sum=$$(sha256sum '$(DIST)/$(NAME)' | cut -d ' ' -f 1) && sed "s|VERSION|$(VERSION)|; s|URL|$(RELEASE_URL)|; s|SHA256|$$sum|; /^#/d" \
	  packaging/krew/dra-dryrun.yaml > '$(DIST)/dra-dryrun.yaml'

manuals: $(READY)
	$(BIN)/python -m tests.docs.manuals build/manuals
	$(ARCHIVE) -C build/manuals . | gzip -n > '$(DIST)/dra-driver-gpu-manuals-$(VERSION).tar.gz'

ARCHIVE := tar -c --sort=name --owner=0 --group=0 --numeric-owner --mtime=@$${SOURCE_DATE_EPOCH:-0}

# The image is built and pushed in one step, because only then its times are those of the commit.
image:
	@test -n '$(IMAGE)' || { echo "say the name of the image: make image IMAGE=registry.example.com/dra-driver-gpu:$(VERSION)"; exit 1; }
	export SOURCE_DATE_EPOCH=$$(git log -1 --format=%ct) && docker buildx build --build-arg SOURCE_DATE_EPOCH \
	  --build-arg VERSION=$(VERSION) --build-arg REVISION=$$(git rev-parse HEAD) \
	  $(if $(REPOSITORY),--label org.opencontainers.image.source=$(REPOSITORY)) \
	  --provenance=false --output type=registry,name=$(IMAGE),rewrite-timestamp=true .

# One name for the images of both architectures; prints the digest.
image-index:
	docker buildx imagetools create --tag $(IMAGE) $(IMAGE)-amd64 $(IMAGE)-arm64
	@docker buildx imagetools inspect $(IMAGE) --format '{{.Manifest.Digest}}' | tee '$(DIST)/image.digest'

push-chart:
	helm push $(PUSH_FLAGS) '$(DIST)/dra-driver-gpu-$(VERSION).tgz' '$(CHARTS)'

version:
	@echo $(VERSION)

# The subjects of the commits of a RANGE, for example main..HEAD.
subjects:
	.ci/check-subjects '$(RANGE)'

# Programs that tests run where they are installed.
tools: $(READY)
	.ci/debian
	.ci/tools

# The image's packages and what builds it, pinned by hash: the base dependencies and the build backend of pyproject.toml.
lock: $(LOCK_TOOLS)/.ready
	UV_CUSTOM_COMPILE_COMMAND='make lock' $(LOCK_TOOLS)/bin/uv pip compile -q pyproject.toml $(LOCKED) -o requirements.lock
	$(BIN)/python -c 'import tomllib; print(*tomllib.load(open("pyproject.toml", "rb"))["build-system"]["requires"], sep="\n")' \
	  | UV_CUSTOM_COMPILE_COMMAND='make lock' $(LOCK_TOOLS)/bin/uv pip compile -q - $(LOCKED) -o requirements-build.lock
LOCKED := --universal --python-version 3.11 --generate-hashes --no-annotate --no-strip-extras

sbom: $(SBOM_TOOLS)/.ready
	mkdir -p '$(DIST)'
	$(PYTHON) -m venv --clear --without-pip build/sbom
	$(BIN)/python -m pip --python build/sbom/bin/python install -q --require-hashes -r requirements.lock
	$(SBOM_TOOLS)/bin/cyclonedx-py environment --pyproject pyproject.toml --output-reproducible -o '$(DIST)/sbom.cdx.json' build/sbom/bin/python

$(LOCK_TOOLS)/.ready $(SBOM_TOOLS)/.ready: $(VENV)/%/.ready: $(READY)
	$(PYTHON) -m venv --without-pip $(@D)
	$(BIN)/python -m pip --python $(@D)/bin/python install --quiet --no-compile --group $*
	@touch $@

scan: $(READY)
	$(PYTHON) -m venv $(VENV)/scan
	$(VENV)/scan/bin/python -m pip install -q bandit==1.9.4 checkov==3.3.30 pip-audit==2.10.1
	PATH="$(CURDIR)/$(VENV)/scan/bin:$$PATH" $(BIN)/python -m pytest tests/test_scans.py tests/test_image.py
	@echo "pip-audit of requirements.lock"
	@$(VENV)/scan/bin/pip-audit --strict --disable-pip --require-hashes -r requirements.lock \
	  || { echo "pip-audit found a vulnerability (a table above names it), or could not ask https://pypi.org/pypi for"; \
	       echo "advisories (an error above): then nothing is known of the packages; run it where PyPI is reached"; exit 1; }

# The lowest version that the runtime dependencies allow, so that the generated code runs with all of them. protoc itself
# needs no other package.
proto: $(READY)
	$(PYTHON) -m venv --without-pip $(VENV)/proto
	$(BIN)/python -m pip --python $(VENV)/proto install --quiet --no-compile --no-deps 'grpcio-tools==1.74.*'
	$(VENV)/proto/bin/python -m grpc_tools.protoc -I. --python_out=. --pyi_out=. kubeletplugin/protocol/*.proto

clean:
	rm -rf $(VENV) build dist .sandbox

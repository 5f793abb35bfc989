# syntax=docker/dockerfile:1
# SPDX-License-Identifier: Apache-2.0
#
# The image of all processes that run on a cluster; docs/how-to/build-the-image.md says how to build it.
#
# Python is CPython as python.org releases it, in Docker's official image: patches arrive within days rather than with
# a distribution's release, and the same versions exist for amd64 and arm64. It must be an image with glibc, since the
# driver's libnvidia-ml.so.1, built for glibc, is loaded into this process. 3.13 is the newest that the image was tried
# with. A release pins the digest: --build-arg PYTHON_IMAGE=python:3.13-slim-bookworm@sha256:...
ARG PYTHON_IMAGE=docker.io/library/python:3.13-slim-bookworm
ARG GCC_IMAGE=docker.io/library/gcc:14-bookworm

# The hook program for limits of GPU memory. It runs on hosts, and so it is static.
# hadolint ignore=DL3006
FROM ${GCC_IMAGE} AS hook
WORKDIR /src
COPY kubeletplugin/features/memory_limits/hook.c ./
RUN gcc -std=gnu11 -static -Os -s -Wl,--build-id=none -o dra-memory-limits hook.c

# hadolint ignore=DL3006
FROM ${PYTHON_IMAGE} AS build
ARG SOURCE_DATE_EPOCH=0
ENV PIP_NO_CACHE_DIR=1 PIP_NO_COMPILE=1 PIP_ONLY_BINARY=:all: PIP_ROOT_USER_ACTION=ignore \
    PIP_DISABLE_PIP_VERSION_CHECK=1 PYTHONDONTWRITEBYTECODE=1
WORKDIR /src
COPY requirements.lock requirements-build.lock ./
RUN python3 -m venv --without-pip /opt/dra \
 && python3 -m pip --python /opt/dra/bin/python3 install --require-hashes --requirement requirements.lock \
 && python3 -m pip install --require-hashes --requirement requirements-build.lock
COPY pyproject.toml README.md LICENSE ./
COPY charts/dra-driver-gpu/files charts/dra-driver-gpu/files
COPY examples examples
COPY dra_driver dra_driver
COPY controller controller
COPY kubeletplugin kubeletplugin
# Bytecode is made now because nothing can be written later, and checked against nothing, so that it does not depend on
# times. dra-dryrun and dra-sandbox are there as well, without the packages of their extras: they say what to install.
# Therefore the wheel needs none of the generated files that the build hook would add (hatch_build.py).
ENV HATCH_BUILD_NO_HOOKS=true
RUN python3 -m pip wheel --no-build-isolation --no-deps --no-index --wheel-dir /wheels . \
 && python3 -m pip --python /opt/dra/bin/python3 install --no-deps --no-index /wheels/*.whl \
 && /opt/dra/bin/python3 -m compileall -q --invalidation-mode unchecked-hash /opt/dra/lib
COPY --from=hook /src/dra-memory-limits /opt/dra/libexec/dra-memory-limits

# hadolint ignore=DL3006
FROM ${PYTHON_IMAGE}
ARG VERSION=0.1.0
ARG REVISION=unknown
LABEL org.opencontainers.image.title="dra-driver-gpu" \
      org.opencontainers.image.description="A Kubernetes Dynamic Resource Allocation driver for NVIDIA GPUs" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}"
# The official image has no bytecode of the standard library, and this one cannot write any. pip is of no use here.
RUN rm -rf /usr/local/bin/pip* /usr/local/lib/python3.*/ensurepip /usr/local/lib/python3.*/site-packages/* \
 && python3 -m compileall -q --invalidation-mode unchecked-hash \
      -x '/(test|tests|idlelib|tkinter|turtledemo|lib2to3|pydoc_data)/' /usr/local/lib/python3.*
COPY --from=build /opt/dra /opt/dra
# void: an NVIDIA container runtime must not add GPUs of its own choice. One arena: else malloc has one for each of some
# 40 threads (docs/explanation/performance.md).
ENV PATH=/opt/dra/bin:/usr/local/bin:/usr/bin:/bin \
    MALLOC_ARENA_MAX=1 \
    PYTHONDONTWRITEBYTECODE=1 \
    PYTHONSAFEPATH=1 \
    NVIDIA_VISIBLE_DEVICES=void
# The chart gives the containers on nodes user 0, because kubelet's folders and the GPUs' device nodes are root's.
USER 65532:65532
WORKDIR /
# No ENTRYPOINT: the chart names the command of each container.
CMD ["dra-kubeletplugin", "--help"]

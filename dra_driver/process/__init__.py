# SPDX-License-Identifier: Apache-2.0
"""What every process needs.

- `command`, `streams`: flags and logs of a command, and output that fails
- `files`, `exposed`: small files, and folders in which containers can write
- `parsing`: YAML and JSON from users
- `programs`, `mps`: external programs with limits of time and output, and the processes of MPS control daemons
- `endpoints`: HTTP for Kubernetes' probes and metrics
- `backoff`, `containment`: pauses between retries, and unexpected errors
- `boot`: the time of the last boot
"""

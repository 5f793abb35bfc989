# SPDX-License-Identifier: Apache-2.0
"""A Kubernetes Dynamic Resource Allocation driver for NVIDIA GPUs.

This package has the code that several processes of the driver use, and the commands for people, from the lowest layer:

- `errors`, `names`: the exceptions, and names that every layer uses
- `process`: what every process needs
- `kube`: the types of resource.k8s.io, and a client for the API server
- `config`: the opaque configurations of claims and classes
- `gpu`: the GPUs of a node, and their description as DRA devices
- `domains`: ComputeDomains, and the process dra-imex-daemon
- `scheduler`: the decisions of kube-scheduler
- `dryrun`: the command dra-dryrun
- `sandbox`: the command dra-sandbox

The other processes are in two packages: `controller` publishes devices, and `kubeletplugin` prepares claims.
`docs/explanation/architecture.md` describes all packages.
"""

import os

# gRPC prints notices to standard error in a format of its own. It reads this when it is imported, which is later.
os.environ.setdefault("GRPC_VERBOSITY", "ERROR")

__version__ = "0.1.0"

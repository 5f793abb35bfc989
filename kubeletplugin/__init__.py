# SPDX-License-Identifier: Apache-2.0
"""The node agent: kubelet asks it to prepare claims for pods, and to undo that.

`serve` puts the parts together. Each folder imports only those before it in this list:

- `hardware`: the GPUs, MIG instances, and whose they are
- `steps`: the changes that claims need on GPUs; each can be done, undone, and asked whether it is done
- `plans`: a claim -> its devices and steps (pure)
- `records`: plans on the disk, before anything is done
- `containers`: CDI specs and metadata files
- `claims`: the life of claims, also after a crash; and beside it `reports`: what the API server is told of them
- `kubelet`: sockets and services
- `commands`, `check`: status, cleanup and check of a node
"""

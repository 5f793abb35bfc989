# SPDX-License-Identifier: Apache-2.0
"""dra-kubeletplugin: prepares claims for pods when kubelet asks for it, and undoes that.

`serve` puts the parts together. Each package imports only those before it in this list:

- `protocol`: kubelet's gRPC messages
- `hardware`: the GPUs, MIG instances, and which of them belong to the driver
- `steps`: the changes that claims need on GPUs; each can be done, undone, and checked whether it is done
- `plans`: from a claim to its devices and steps (pure)
- `records`: the recorded plans on disk, written before a plan is carried out
- `containers`: CDI specs and metadata files
- `claims`: the life of claims, also after a crash
- `reports`: device status, Events and binding conditions in the API server
- `kubelet`: sockets and gRPC services
- `commands`: the commands `status` and `cleanup`

`check` is the command that checks a node.
"""

# SPDX-License-Identifier: Apache-2.0
"""dra-kubeletplugin: prepares claims for pods when kubelet asks for it, and undoes that. dra-mps is in `features/mps`.

`main` is the command, `options` has its flags, and `serve` puts the parts together. A package imports only those before
it in this list, except that the parts of `features` and `containers` have layers of their own (`.importlinter`):

- `errors`: the exceptions
- `protocol`: kubelet's gRPC messages
- `host`: programs, kernel modules and processes of the host
- `kinds`: the kinds of devices, and what changes them on the hardware
- `features`: MPS, limits of GPU memory, NVSwitch partitions, and the driver of ComputeDomains
- `node`: the GPUs of the node, and the marks of what was changed for claims
- `steps`: the changes that claims need on GPUs; each can be done, undone, and checked whether it is done
- `plans`: from a claim to its devices and steps (pure)
- `records`: the recorded plans on disk, written before a plan is carried out
- `containers`: CDI specs and metadata files
- `claims`: the life of claims, also after a crash
- `reports`: device status, Events and binding conditions in the API server
- `kubelet`: sockets and gRPC services
- `check`, `commands`: the commands `check`, `status` and `cleanup`

`metrics` has the metrics, and `healthchecks` the probes.
"""

# SPDX-License-Identifier: Apache-2.0
"""dra-kubeletplugin: prepares claims for pods when kubelet asks for it, and undoes that. dra-mps is in `features/mps`.

`main` is the command, `options` has its flags, and `serve` puts the parts together. A package imports only those before
it in this list (`.importlinter`):

- `errors`: the exceptions; `protocol`: kubelet's gRPC messages
- `host`: programs, kernel modules and processes of the host; `finding`: results of checks
- `containers`: the format of CDI specs, the common spec, and metadata files
- `node`: what the node is made of: folders, GPUs, and the access of features to them
- `claims`: the one life of a claim, also after a crash. It knows steps, keys and marks, and none of the following.
- `reports`, `metrics`: device status, Events and binding conditions in the API server; the metrics
- `kinds`: a file or folder for each kind of device, with the steps that make it
- `kubelet`: sockets and gRPC services
- `features`: what several devices need together; features do not import each other
- `drivers`: the tables of kinds and steps, and how a claim is planned; the only file that knows all of them
- `check`, `commands`: the commands `check`, `status` and `cleanup`

`healthchecks` has the probes.
"""

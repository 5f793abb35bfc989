# SPDX-License-Identifier: Apache-2.0
"""`dra-kubeletplugin check`: whether this node is ready for the driver, and if not, what to do.

The functions that judge are given facts (the content of a file, an answer of NVML or the API server), and read nothing
themselves. Where there are many facts, a reader collects them first, and decides nothing.

- `driver`: the NVIDIA driver and the GPUs
- `folders`: the folders of kubelet and the container runtime, and CDI specs of NVIDIA's driver in them
- `sharing`: shares of GPUs as the policy has them, and settings that were not restored
- `process` and `kubelet`: how kubelet was started and configured
- `runtime` and `cdi`: whether the container runtime, which `cri` asks, finds our CDI specs; `dropin`: the file of --fix
- `cluster`: the API server, and the releases of all these programs

These checks are about the node as a whole. Kinds and features have their own (`kubeletplugin.drivers.CHECKS`).
`command` runs all of them. `host` has the files of the node. `kubeletplugin.finding` has the results and their text. A
finding is a failure only if it is certain that pods cannot get GPUs. If something cannot be read from here, it is a
warning.
"""

# SPDX-License-Identifier: Apache-2.0
"""`dra-kubeletplugin check`: whether this node is ready for the driver, and if not, what to do.

Each file checks one thing in two steps. A reader collects facts (the content of a file, an answer of NVML or the API
server) and decides nothing. A pure function turns the facts into findings.

- `driver` and `gpus`: the hardware
- `folders`: the folders of kubelet and the container runtime, and CDI specs of NVIDIA's driver in them
- `process` and `kubelet`: how kubelet was started and configured
- `containerd` and `crio`: CDI in the configuration of the container runtime
- `cluster`: the API server, and the releases of all these programs

`look` runs all checks, `dropin` writes the file of --fix, `finding` has the results and their text, and `command` is
the command. A finding is a failure only if it is certain that pods cannot get GPUs. Something that cannot be read
from here is a warning.
"""

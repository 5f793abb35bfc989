# SPDX-License-Identifier: Apache-2.0
"""`dra-kubeletplugin check`: is this node ready for the driver, and if not, what is to be done.

Each file looks at one thing, in two steps. A reader collects facts (what a file says, what NVML or the API server
answers) and decides nothing; a pure function makes findings of the facts. `driver` and `gpus` are about the hardware,
`folders` about kubelet's and the container runtime's directories and another driver's specs there,
`process` and `kubelet` about how kubelet was started and configured, `containerd` and `crio` about CDI in the runtime's
configuration, `cluster` about the API server and the releases of all of these. `look` asks all of
them, `dropin` writes what --fix promises, `finding` has results and their text, `command` is the command.

A finding is a failure only when it is certain that pods will not get GPUs; what cannot be seen from here is a warning.
"""

# SPDX-License-Identifier: Apache-2.0
"""NVIDIA's Multi-Process Service (MPS): control daemons that run for claims, and the process that supervises them.

The plugin writes what each claim wants of MPS to a file (`shares`) and asks the process dra-mps to settle it
(`client`). dra-mps (`main`, `server`, `supervisor`) starts, configures, restarts and ends control daemons until they
are as the files say. It is a process of its own because the clients of a daemon must survive an update of the plugin.

`protocol2` and `protocol3` serve shares in the two ways that drivers know: up to driver 614 a control daemon for each
group of devices; from 615 on one for the node, with a server for each group and a namespace for each share. Both use
`daemon`, one control daemon; `program` runs NVIDIA's program below the driver root, `processes` ends what is left.

The programs, their commands and files: https://docs.nvidia.com/deploy/mps/ (pages architecture, mpsv2-interface,
mpsv3-interface, appendix-environment-variables), Release 615.
"""

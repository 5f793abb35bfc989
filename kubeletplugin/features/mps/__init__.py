# SPDX-License-Identifier: Apache-2.0
"""NVIDIA's Multi-Process Service (MPS): control daemons that run for claims, and the process that supervises them.

The plugin writes a file for each claim with its devices and limits (a share, see `shares`), and asks the process
dra-mps to apply it (`client`). dra-mps (`main`, `server`, `supervisor`) starts, configures, restarts and ends control
daemons until they match the files. It is a separate process because the clients of a daemon must survive an update of
the plugin.

`protocol2` and `protocol3` serve shares in the two ways that drivers support. Up to driver 614, each group of devices
has a control daemon. From 615 on, the node has one, with a server for each group and a namespace for each share. Both
protocols use `daemon` to control a daemon, `program` to run NVIDIA's program in the driver root, `selinux` to let
containers use its folders, and `dra_driver.process.mps` to end processes that remain.

The programs, their commands and files: https://docs.nvidia.com/deploy/mps/ (pages architecture, mpsv2-interface,
mpsv3-interface, appendix-environment-variables), Release 615.
"""

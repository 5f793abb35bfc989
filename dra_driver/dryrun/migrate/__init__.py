# SPDX-License-Identifier: Apache-2.0
"""`dra-dryrun migrate`: from NVIDIA's device plugin to this driver.

`configs` reads configurations of the device plugin and of mig-parted, `programs` finds NVIDIA's DaemonSets and chooses
the configuration of each node, `nodes` tells what the plugin offers on each node,
`plan` makes the driver's policy and DeviceClasses of it, `workloads` tells what each workload needs, `verify` places
the workloads on the planned devices. `reading` reads files or a cluster, `result` collects and prints, and `command` is
the subcommand.
"""

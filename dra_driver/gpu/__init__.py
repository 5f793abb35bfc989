# SPDX-License-Identifier: Apache-2.0
"""The hardware of a node: the NVML interface, the GPUs that it reports, and their description as DRA devices.

- `nvml` is the NVML interface. `nvml_library` implements it with pynvml, and `simulated` implements it without GPUs.
- `calls` has the threads that call NVML, with a time limit for each call. `session` keeps NVML usable while drivers and
  GPUs come and go. `pulse` is a cheap look that tells whether anything changed.
- `inventory` reads the GPUs into plain values (`facts`), with `pci`, `functions` (PCI functions and IOMMU groups),
  `vgpus` (vGPUs in sysfs), `profiles` (MIG profiles) and `mig` (MIG devices and their instances).
- `fabric` is the interface to Fabric Manager, which manages NVSwitch partitions. `fabric_library` implements it with
  NVIDIA's library, and `fabric_access` has its thread with time limits. `imex` reads the IMEX channels of the node, and
  the clique that its GPUs have joined.
- `marks` has the stores of marks, which say what belongs to the driver: `ownership` (MIG instances and vGPUs),
  `passthrough` (GPUs that virtual machines have), `fabric_marks` (partitions that claims need). `marked` reads hardware
  and marks of the same moment.
- `devices` describes the facts as DRA devices, under the administrator's `policy`. `layout` puts the devices into
  slices. `labels` has the labels of the node, as GPU Feature Discovery has them.
- `health` watches the GPUs, and turns NVML's reports into device taints.
- `memory_limits` has limits of the GPU memory of cgroups, and what a node needs for them.
- `view` combines all of these into the current state of the node. `options` has the flags that node processes share.
"""

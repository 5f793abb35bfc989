# SPDX-License-Identifier: Apache-2.0
"""The hardware of a node: the NVML interface, the GPUs that it reports, and their description as DRA devices.

- `nvml` is the NVML interface. `nvml_library` implements it with pynvml, and `simulation` implements it without GPUs.
- `calls` has the threads that call NVML, with a time limit for each call. `session` keeps NVML usable while drivers and
  GPUs come and go. `inventory` reads the GPUs into plain values (`facts`).
- `devices` describes these values as DRA devices, under the administrator's `policy`. `layout` puts the devices into
  slices. `ownership` remembers which MIG instances belong to the driver.
- `health` watches the GPUs, and turns NVML's reports into device taints.
- `view` combines all of these into the current state of the node.
"""

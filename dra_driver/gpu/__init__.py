# SPDX-License-Identifier: Apache-2.0
"""The hardware: the NVML interface, what a node has, and how that is described as DRA devices.

- `nvml` is the NVML interface, `nvml_library` implements it with pynvml, `simulation` implements it without GPUs.
- `calls` has the threads that call NVML, with a time limit for each call; `session` keeps NVML usable while drivers and
  GPUs come and go; `inventory` reads plain `facts` with it.
- `devices` describes the facts as DRA devices, as the administrator's `policy` wants it, and `layout` puts the devices
  into slices. `ownership` remembers which MIG instances belong to the driver.
- `health` follows events and counters, and decides what they mean for the devices.
- `view` combines all of this into what the node has now.
"""

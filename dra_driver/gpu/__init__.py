# SPDX-License-Identifier: Apache-2.0
"""The hardware: the one gateway to NVML, what a node has, and how that is described as DRA devices.

`nvml` is the gateway's interface, `library` speaks to the driver through pynvml, `simulation` is a node without GPUs
that behaves as one. `inventory` reads plain facts through either; `devices` turns facts into the vocabulary of
`dra_driver.resource`, as the `policy` wants it, and `layout` into slices. `health` follows events and counters, and
says what they mean for the devices. `ownership` remembers which MIG instances are whose. `calls` has the threads
that call NVML, with time limits, and `view` puts all of it together, for as long as a process lives.
"""

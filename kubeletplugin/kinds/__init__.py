# SPDX-License-Identifier: Apache-2.0
"""The kinds of devices, and what changes them on the hardware.

`targets` has the kinds as values. `mig` has MIG instances, `vfio` binds GPUs to a vfio driver, and `gpu_settings` has
the settings of whole GPUs.
"""

# SPDX-License-Identifier: Apache-2.0
"""The GPUs of the node: NVML and the driver (`gpus`), MIG instances (`mig`), and which of them are the driver's
(`marks`).

`targets` maps an allocated device to the hardware; the rest of the plugin uses its types.
"""

# SPDX-License-Identifier: Apache-2.0
"""The files that give containers the devices of a claim: CDI specs, and metadata files.

`cdi` has the format of CDI specs and the files of NVIDIA's driver. `specs` writes the spec of a claim, with what `mps`,
`vfio` and `limits` (of GPU memory) add. `metadata` writes the files with the attributes of devices.
"""

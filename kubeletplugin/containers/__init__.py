# SPDX-License-Identifier: Apache-2.0
"""The files that give containers the devices of a claim: CDI specs, and metadata files.

`cdi` has the format of CDI specs and the files of NVIDIA's driver. `common` writes the spec that every container with a
GPU needs, and `metadata` the files with the attributes of devices. `runtime` tells what the container runtime can read.
"""

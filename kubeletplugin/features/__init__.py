# SPDX-License-Identifier: Apache-2.0
"""What several devices of a claim need together, a file or folder for each feature.

- `time_slicing`: the interval in which processes take turns on a GPU
- `mps`: the control daemons of MPS, and the process `dra-mps` that supervises them
- `memory_limits`: limits of the GPU memory of containers
- `additional_devices`: devices of the node, such as those of GPUDirect, for containers with a GPU
- `fabric`: NVSwitch partitions
- `domain`: the driver compute-domain.nvidia.com
"""

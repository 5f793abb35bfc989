# SPDX-License-Identifier: Apache-2.0
"""What several devices of a claim need together, a folder for each feature.

- `mps`: the control daemons of MPS, and the process `dra-mps` that supervises them
- `memory_limits`: limits of the GPU memory of containers
- `fabric`: NVSwitch partitions
- `domain`: the driver compute-domain.nvidia.com
"""

# SPDX-License-Identifier: Apache-2.0
"""Stand-ins of NVIDIA's programs, for simulated nodes.

These programs run on their own, without the rest of this project. `gpu.simulated.files` installs them in the driver
root of a node.
"""

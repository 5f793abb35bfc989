# SPDX-License-Identifier: Apache-2.0
"""Stand-ins of NVIDIA's programs, for simulated nodes.

Each module is a script that runs on its own, without this project. `gpu.simulated.files` installs them in the driver
root of a node.
"""

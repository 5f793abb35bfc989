# SPDX-License-Identifier: Apache-2.0
"""The node: its folders (`folders`), its GPUs as this process has them (`gpus`), and both together (`node`)."""

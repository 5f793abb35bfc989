# SPDX-License-Identifier: Apache-2.0
"""What people ask of a node: its status, and to be cleaned up. The larger `check` has a folder of its own."""

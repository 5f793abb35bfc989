# SPDX-License-Identifier: Apache-2.0
"""From a checked tree to closures, and what they do with a device: paths, calls, loops, runtime cost."""

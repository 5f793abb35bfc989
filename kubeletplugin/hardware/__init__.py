# SPDX-License-Identifier: Apache-2.0
"""The GPUs of the node: the way to them, MIG instances, whose those are, and calls that may never return.

`targets` says what an allocated device is here; the rest of the plugin speaks of GPUs in its words.
"""

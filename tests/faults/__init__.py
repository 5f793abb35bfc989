# SPDX-License-Identifier: Apache-2.0
"""The plugin under faults at every point where it touches the node, and under long random use."""

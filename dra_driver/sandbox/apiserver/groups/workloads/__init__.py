# SPDX-License-Identifier: Apache-2.0
"""apps and batch: the objects that make pods. Nothing here makes them; defaults, rules and columns only."""

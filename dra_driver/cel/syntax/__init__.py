# SPDX-License-Identifier: Apache-2.0
"""From text to a tree with macros expanded: grammar, literals, macros, and what to say about text that is none."""

# SPDX-License-Identifier: Apache-2.0
"""How the objects of each API group behave: defaults, what a write may change, validation, columns."""

# SPDX-License-Identifier: Apache-2.0
"""The documents say what the code does."""

# SPDX-License-Identifier: Apache-2.0
"""Helpers that tests of several packages share."""

import os


def examples(most: int) -> int:
    """How many random examples a test tries: a third of the most, and all of them with EVERY_EXAMPLE=1."""
    return most if os.environ.get("EVERY_EXAMPLE") else most // 3

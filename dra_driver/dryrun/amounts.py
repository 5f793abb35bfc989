# SPDX-License-Identifier: Apache-2.0
"""Amounts of resources, as people read them."""

from typing import Final

_BINARY: Final = ("Ki", "Mi", "Gi", "Ti", "Pi", "Ei")


def is_bytes(resource: str) -> bool:
    """Whether the resource is counted in bytes."""
    return resource in ("memory", "ephemeral-storage") or resource.startswith("hugepages-")


def amount(resource: str, number: int) -> str:
    """An amount as the scheduler counts it, for people: `3.5` CPUs, `12Gi`."""
    if resource == "cpu":
        return f"{number / 1000:.3f}".rstrip("0").rstrip(".")
    if is_bytes(resource):
        unit, size = "", float(number)
        for name in _BINARY:
            if abs(size) < 1024:
                break
            unit, size = name, size / 1024
        return f"{size:.1f}".removesuffix(".0") + unit
    return str(number)

# SPDX-License-Identifier: Apache-2.0
"""JSON Merge Patch, RFC 7386."""

from typing import Any


def apply_merge_patch(target: Any, patch: Any) -> Any:
    """`target` with `patch` merged in: null removes, objects merge, anything else replaces."""
    if not isinstance(patch, dict):
        return patch
    result = dict(target) if isinstance(target, dict) else {}
    for key, value in patch.items():
        if value is None:
            result.pop(key, None)
        else:
            result[key] = apply_merge_patch(result.get(key), value)
    return result

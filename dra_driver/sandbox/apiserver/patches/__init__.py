# SPDX-License-Identifier: Apache-2.0
"""The three kinds of patch that are pure functions of the current object and the patch.

The fourth, server-side apply, needs to know who owns what and lives in `apply`.
"""


class PatchError(Exception):
    """The patch does not fit the object."""


class MalformedPatchError(PatchError):
    """The patch is none of its kind."""

# SPDX-License-Identifier: Apache-2.0
"""The error that ends an allocation attempt at once: there is no backtracking around it."""

from .outcome import ErrorKind


class AllocationError(Exception):
    """Carries the kind of error, its text, and whether it stops the pod (`fatal`) or only rules out the node.

    `reason` is what kube-scheduler says of it; where that is not given, it is the text.
    """

    def __init__(self, kind: ErrorKind, message: str, *, fatal: bool = True, reason: str = "") -> None:
        super().__init__(message)
        self.kind = kind
        self.message = message
        self.fatal = fatal
        self.reason = reason or message

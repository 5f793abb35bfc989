# SPDX-License-Identifier: Apache-2.0
"""The base class of the exceptions that this project raises."""


class DriverError(Exception):
    """An expected error. Its text says what failed, where, and what to do.

    Packages have subclasses for errors that their callers handle differently. Any other exception is a defect of the
    project, and ends only the work on one claim, GPU, slice or file (see `containment`).
    """

# SPDX-License-Identifier: Apache-2.0
"""The root of the exceptions that this project raises."""


class DriverError(Exception):
    """Something that the project expects to fail has failed. The text says what, where, and what to do.

    Each package has the subclasses that its callers tell apart. Any other exception is a defect of the project: it is
    handled at the boundary of one claim, GPU, slice or file (see `containment`).
    """

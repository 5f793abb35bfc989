# SPDX-License-Identifier: Apache-2.0
"""The exceptions of the controller's processes.

    DriverError
        ReviewError
        TlsError

DriverError is that of dra_driver.
"""

from dra_driver.errors import DriverError


class ReviewError(DriverError, ValueError):
    """The request is not a valid AdmissionReview. The text tells why."""


class TlsError(DriverError, ValueError):
    """The certificate cannot be used. The text names the files."""

# SPDX-License-Identifier: Apache-2.0
"""What can go wrong with a claim, for the caller to hand on to kubelet; anything else is a bug."""

from dra_driver.cluster import ApiError
from dra_driver.gpu.calls import HungError
from dra_driver.gpu.nvml import NvmlError

from ..hardware.gpus import NoDriverError
from ..hardware.targets import PrepareError
from ..records.store import RecordError


class StoppedError(Exception):
    """A call was broken off between two steps; the text says why. What was done stays recorded."""


EXPECTED_ERRORS = (PrepareError, RecordError, NoDriverError, HungError, StoppedError, ApiError, NvmlError, OSError)

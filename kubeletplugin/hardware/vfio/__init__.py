# SPDX-License-Identifier: Apache-2.0
"""Binding GPUs to a vfio driver for virtual machines, and back.

`binder` has the changes of a GPU, and uses the others: `modules` (which vfio driver, and loading it), `openers` (the
processes that use a GPU), `writes` (writes to sysfs with a time limit) and `programs` (the persistence mode).
"""

from .binder import VfioAccess, VfioBinder
from .modules import VfioModules
from .programs import HostPrograms, PersistenceModes
from .writes import StuckError, SysfsWrites

__all__ = ["HostPrograms", "PersistenceModes", "StuckError", "SysfsWrites", "VfioAccess", "VfioBinder", "VfioModules"]

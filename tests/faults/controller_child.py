# SPDX-License-Identifier: Apache-2.0
"""dra-controller, which gives up a driver that hangs sooner and tells what it holds on to:
`python -m tests.faults.controller_child COUNTS_FILE FLAGS`; see `resources.write_on_signal`.
"""

import signal
import sys
from pathlib import Path

from controller.main import main
from dra_driver.gpu.options import Hardware
from dra_driver.gpu.passthrough import VfioMarks
from dra_driver.gpu.session import Session
from dra_driver.gpu.threads import CallLimits

from .resources import write_on_signal


def impatient_session(hardware: Hardware, taken: VfioMarks | None = None, _limits: CallLimits | None = None) -> Session:
    """The hardware's session, with short time limits."""
    return Session(
        hardware.nvml,
        hardware.sys_root,
        dev_root=hardware.dev_root,
        driver_root=hardware.driver_root,
        limits=CallLimits(initialize=3.0, look=3.0),
        taken=taken,
    )


if __name__ == "__main__":
    write_on_signal(signal.SIGUSR1, Path(sys.argv[1]))
    setattr(Hardware, "session", impatient_session)  # noqa: B010 - mypy takes no assignment here
    main(sys.argv[2:])

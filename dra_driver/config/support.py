# SPDX-License-Identifier: Apache-2.0
"""What may be configured, and this version of the driver cannot do. Prepare refuses it; lint and webhook warn of it."""

from .types import DeviceConfig


def unsupported(config: DeviceConfig, who: str) -> str | None:
    """What `who` asks for in vain, as a sentence; None when all of the configuration can be applied."""
    if config.sharing is None:
        return None
    return (
        f"{who} asks for sharing strategy {config.sharing.strategy}, which this version of the driver cannot apply;"
        " containers of one pod, or pods with one claim, share a device without it"
    )

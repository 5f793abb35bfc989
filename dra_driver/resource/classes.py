# SPDX-License-Identifier: Apache-2.0
"""DeviceClasses: what an administrator offers under one name."""

from collections.abc import Mapping
from dataclasses import dataclass

from .meta import ObjectMeta


@dataclass(frozen=True, slots=True)
class OpaqueConfiguration:
    """Parameters for one driver, opaque to Kubernetes: a JSON object."""

    driver: str
    parameters: Mapping[str, object]


@dataclass(frozen=True, slots=True)
class DeviceClass:
    """Selectors that every device of the class meets (CEL), and configuration that goes with it."""

    metadata: ObjectMeta
    selectors: tuple[str, ...] = ()
    config: tuple[OpaqueConfiguration, ...] = ()
    extended_resource_name: str = ""

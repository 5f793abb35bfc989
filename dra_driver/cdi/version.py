# SPDX-License-Identifier: Apache-2.0
"""The lowest `cdiVersion` that a spec's content needs.

Runtimes refuse a spec whose version is higher than their library knows, or lower than what it uses. The rules are
those of specs-go/version.go of the container-device-interface library 1.1.0.
"""

from collections.abc import Iterator

from .spec import ContainerEdits, Spec

VERSIONS = ("0.1.0", "0.2.0", "0.3.0", "0.4.0", "0.5.0", "0.6.0", "0.7.0", "0.8.0", "1.0.0", "1.1.0")
"""Every released version, oldest first."""

FLOOR = "0.3.0"
"""No content needs less than this, and nothing below it is accepted."""


def minimum_version(spec: Spec) -> str:
    """The lowest version under which a runtime accepts `spec`."""
    edits = list(_all_edits(spec))
    if any(edit.additional_gids for edit in edits):
        return "0.7.0"
    if spec.annotations or any(device.annotations for device in spec.devices) or "." in spec.kind.partition("/")[2]:
        return "0.6.0"
    if any("0" <= device.name[:1] <= "9" for device in spec.devices) or any(
        node.host_path for edit in edits for node in edit.device_nodes
    ):
        return "0.5.0"
    if any(mount.type for edit in edits for mount in edit.mounts):
        return "0.4.0"
    return FLOOR


def _all_edits(spec: Spec) -> Iterator[ContainerEdits]:
    yield spec.container_edits
    for device in spec.devices:
        yield device.container_edits

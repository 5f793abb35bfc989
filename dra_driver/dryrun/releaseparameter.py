# SPDX-License-Identifier: Apache-2.0
"""The type of options that take a Kubernetes release. dra-sandbox has such an option, too, and does not load the other
options of dra-dryrun, whose imports take most of the time of its start.
"""

from collections.abc import Sequence

import click

from ..kube.releases import first_with_rules_of, is_supported, minor_release


class ReleaseParameter(click.ParamType[str]):
    """A minor release, or a patch release of it. The value is the first release that has its rules."""

    name = "release"

    def __init__(self, minor_releases: Sequence[str]) -> None:
        self._known = minor_releases

    def convert(self, value: str, param: click.Parameter | None, context: click.Context | None) -> str:
        """The release. Fails if it is not known."""
        if not is_supported(value) or minor_release(value) not in self._known:
            self.fail(f"{value!r} is not one of {', '.join(self._known)}, or a patch release of them", param, context)
        return first_with_rules_of(value)

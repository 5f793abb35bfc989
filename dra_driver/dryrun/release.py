# SPDX-License-Identifier: Apache-2.0
"""The kube-scheduler whose decisions are computed: its release, its feature gates, with or without its defects."""

import click

from ..allocation import RELEASES, Features
from ..allocation.features import DEFAULT_RELEASE
from ..command import InputError
from .options import F, gathered, option

_OPTIONS = (
    option(
        "--kubernetes-version",
        type=click.Choice(RELEASES),
        default=DEFAULT_RELEASE,
        show_default=True,
        help="The release whose scheduler decides. 1.36 is exact; others are 1.36 with their own gates.",
    ),
    option(
        "--feature-gates",
        metavar="GATE=true,...",
        default="",
        help="The scheduler's DRA feature gates, where they are not the release's defaults.",
    ),
    option(
        "--ideal",
        is_flag=True,
        help="Decide by the rules of the API, without the defects of the release.",
    ),
)


def release_options(command: F) -> F:
    """Adds --kubernetes-version, --feature-gates and --ideal, given to the command as `features`."""
    return gathered(command, _OPTIONS, "features", _features)


def parse_gates(text: str) -> dict[str, bool]:
    """The feature gates of `--feature-gates`, as in `DRAFoo=true,DRABar=false`. Raises InputError."""
    gates: dict[str, bool] = {}
    for part in filter(None, (one.strip() for one in text.split(","))):
        name, equals, value = part.partition("=")
        if not equals or value.lower() not in ("true", "false"):
            raise InputError(f"--feature-gates: {part!r} is not of the form GATE=true or GATE=false")
        gates[name] = value.lower() == "true"
    return gates


def _features(kubernetes_version: str, feature_gates: str, ideal: bool) -> Features:
    gates = parse_gates(feature_gates)
    try:
        return Features.from_gates(gates, release=kubernetes_version, ideal=ideal)
    except ValueError as error:
        raise InputError(f"--feature-gates: {error}") from None

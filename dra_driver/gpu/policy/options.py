# SPDX-License-Identifier: Apache-2.0
"""The flags by which a process is told what is wanted of its GPUs.

The processes of a node have the same flags, since they must agree: what one taints, the other calls unhealthy.
"""

import functools
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

import click

from ...command import InputError
from .file import PolicyFile
from .reading import PolicyError
from .rules import NodePolicy

F = TypeVar("F", bound=Callable[..., Any])


@dataclass(frozen=True, slots=True)
class PolicyOptions:
    """Where the policy is, if anywhere, and the XIDs that are errors of applications beside those that it names."""

    file: Path | None = None
    application_xids: frozenset[int] = frozenset()

    def on_node(self, name: str) -> Callable[[], NodePolicy]:
        """What gives the node's policy as it is at the moment. Raises InputError when it is of no use to begin with."""
        source: Callable[[], NodePolicy] = NodePolicy if self.file is None else PolicyFile(self.file, name).current

        def current() -> NodePolicy:
            policy = source()
            xids = policy.health.application_xids | self.application_xids
            return replace(policy, health=replace(policy.health, application_xids=xids))

        try:
            current()
        except PolicyError as error:
            raise InputError(str(error)) from None
        return current


def policy_options(command: F) -> F:
    """Adds --policy-file and --additional-xids-to-ignore, and passes PolicyOptions as `policy`."""

    @click.option(
        "--policy-file",
        type=click.Path(dir_okay=False, path_type=Path),
        envvar="POLICY_FILE",
        show_envvar=True,
        help="What is wanted of which GPU: published or not, MIG, passthrough, health (YAML); read anew when it"
        " changes.",
    )
    @click.option(
        "--additional-xids-to-ignore",
        callback=_numbers,
        default="",
        metavar="N,N…",
        envvar="ADDITIONAL_XIDS_TO_IGNORE",
        show_envvar=True,
        help="XIDs that are errors of applications, beside those known as such.",
    )
    @functools.wraps(command)
    def wrapped(
        *arguments: object, policy_file: Path | None, additional_xids_to_ignore: frozenset[int], **options: object
    ) -> object:
        return command(*arguments, policy=PolicyOptions(policy_file, additional_xids_to_ignore), **options)

    return wrapped  # type: ignore[return-value]  # functools.wraps keeps the signature, not the type


def _numbers(_context: click.Context, _option: click.Parameter, text: str) -> frozenset[int]:
    words = [word.strip() for word in text.split(",") if word.strip()]
    if not all(word.isdecimal() for word in words):
        raise click.BadParameter(f"{text!r} must be numbers, separated by commas")
    return frozenset(map(int, words))

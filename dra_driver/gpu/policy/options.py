# SPDX-License-Identifier: Apache-2.0
"""The flags for the policy, and the policy file of a running process.

The processes of a node have the same flags, because they must agree: a device that one process taints is unhealthy
for the other. The file is read again when it changes. While it is invalid, the last valid policy stays in effect.
"""

import functools
import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

import click

from ...command import InputError
from .parse import PolicyError, load_policy
from .rules import NodePolicy

log = logging.getLogger(__name__)

_Version = tuple[int, int, int, int]


class PolicyFile:
    """The policy of one node. May be used by several threads.

    A change is noticed when `current` is called: a file written in place, replaced, or swapped behind a symbolic link
    as kubelet does with ConfigMaps.
    """

    def __init__(self, path: Path, node_name: str) -> None:
        self._path = path
        self._node_name = node_name
        self._lock = threading.Lock()
        self._version: _Version | None = None
        self._policy: NodePolicy | None = None
        self._problem: str | None = None

    @property
    def problem(self) -> str | None:
        """Why the file cannot be used at the moment, None when `current` is what it says."""
        return self._problem

    def current(self) -> NodePolicy:
        """What the file says now, or said when it was last usable. Raises PolicyError when it never was."""
        with self._lock:
            version = self._look()
            if version is None or version != self._version or self._policy is None:
                self._read(version)
            if self._policy is None:
                raise PolicyError(self._problem or f"policy file {self._path} was never read")
            return self._policy

    def _look(self) -> _Version | None:
        """What changes when the content does; None when there is no file."""
        try:
            found = self._path.stat()
        except OSError:
            return None
        return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns

    def _read(self, version: _Version | None) -> None:
        first = self._policy is None
        try:
            policy = load_policy(self._path).on_node(self._node_name)
        except PolicyError as error:
            self._report(str(error))
        else:
            if not first and (self._problem is not None or policy != self._policy):
                log.info("the policy changed", extra={"file": str(self._path)})
            self._policy, self._problem = policy, None
        self._version = version

    def _report(self, problem: str) -> None:
        if problem != self._problem and self._policy is not None:
            log.error("%s; the last valid policy stays in effect", problem)
        self._problem = problem


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
        help="How each GPU is used: whether it is published, MIG, passthrough, health (YAML). It is read again when it"
        " changes.",
    )
    @click.option(
        "--additional-xids-to-ignore",
        callback=_numbers,
        default="",
        metavar="N,N…",
        envvar="ADDITIONAL_XIDS_TO_IGNORE",
        show_envvar=True,
        help="Additional XIDs that are errors of applications and not of the GPU.",
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

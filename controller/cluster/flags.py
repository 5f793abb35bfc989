# SPDX-License-Identifier: Apache-2.0
"""The flags of leader election, named as the official driver's."""

import functools
import re
import socket
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, TypeVar

import click

from dra_driver.cluster.leases import LeaseTiming
from dra_driver.command import InputError

F = TypeVar("F", bound=Callable[..., Any])

LEASE_NAME: Final = "nvidia-dra-cluster-controller"

_UNITS: Final = {"h": 3600.0, "m": 60.0, "s": 1.0, "ms": 0.001}
_DURATION: Final = re.compile(r"(?:\d+(?:\.\d+)?(?:h|ms|m|s))+")
_PART: Final = re.compile(r"(\d+(?:\.\d+)?)(h|ms|m|s)")


class Duration(click.ParamType):  # type: ignore[type-arg,unused-ignore]  # generic from click 8.4 on
    """Seconds, written as Go writes durations: 15s, 1m30s, 500ms."""

    name = "duration"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Seconds. Fails on anything else."""
        if isinstance(value, float):
            return value
        text = str(value)
        if not _DURATION.fullmatch(text):
            self.fail(f"{text!r} is not a duration such as 15s, 1m30s or 500ms", param, ctx)
        return sum(float(number) * _UNITS[unit] for number, unit in _PART.findall(text))


@dataclass(frozen=True, slots=True)
class LeaderElection:
    """Whether and how the processes that run at the same time decide which of them works."""

    enabled: bool
    namespace: str
    name: str
    identity: str
    timing: LeaseTiming


def leader_election_options(command: F) -> F:
    """Adds --leader-election-…, --namespace and --pod-name, and passes a LeaderElection as `election`."""

    @click.option(
        "--namespace",
        default="default",
        show_default=True,
        envvar="NAMESPACE",
        show_envvar=True,
        help="The namespace that this process runs in.",
    )
    @click.option(
        "--pod-name",
        default=socket.gethostname,
        show_default="the host's name",
        envvar="POD_NAME",
        show_envvar=True,
        help="What this process is called in the Lease and in Events.",
    )
    @_option("enabled", is_flag=True, help="Work only while holding a Lease, for several replicas.")
    @_option("lease-lock-namespace", default="", help="The Lease's namespace; --namespace when empty.")
    @_option("lease-lock-name", default=LEASE_NAME, help="The Lease's name.")
    @_option("lease-duration", type=Duration(), default="15s", help="How long others wait for a holder that is silent.")
    @_option("renew-deadline", type=Duration(), default="10s", help="How long a holder works on without a renewal.")
    @_option("retry-period", type=Duration(), default="2s", help="The pause between attempts to take or renew it.")
    @functools.wraps(command)
    def wrapped(
        *arguments: object,
        namespace: str,
        pod_name: str,
        leader_election_enabled: bool,
        leader_election_lease_lock_namespace: str,
        leader_election_lease_lock_name: str,
        leader_election_lease_duration: float,
        leader_election_renew_deadline: float,
        leader_election_retry_period: float,
        **options: object,
    ) -> object:
        try:
            timing = LeaseTiming(
                leader_election_lease_duration, leader_election_renew_deadline, leader_election_retry_period
            )
        except ValueError as error:
            raise InputError(f"--leader-election-…: {error}") from None
        election = LeaderElection(
            leader_election_enabled,
            leader_election_lease_lock_namespace or namespace,
            leader_election_lease_lock_name,
            f"{pod_name}_{uuid.uuid4()}",  # not the pod's name alone: a container that was restarted is another one
            timing,
        )
        return command(*arguments, election=election, pod_name=pod_name, **options)

    return wrapped  # type: ignore[return-value]  # functools.wraps keeps the signature, not the type


def _option(name: str, **settings: Any) -> Callable[[F], F]:
    flag = f"leader-election-{name}"
    return click.option(
        f"--{flag}", envvar=flag.upper().replace("-", "_"), show_envvar=True, show_default=True, **settings
    )

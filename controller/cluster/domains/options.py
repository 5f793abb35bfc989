# SPDX-License-Identifier: Apache-2.0
"""The flags of ComputeDomains. Options that the official controller also has have the same names and variables."""

import json
from typing import Any, Final

import click

from dra_driver.errors import QuantityError
from dra_driver.kube.resource.quantity import Quantity
from dra_driver.process.command import InputError, flag, flags

from .settings import DaemonSettings

ISSUERS: Final = ("Issuer", "ClusterIssuer")


def _settings(  # noqa: PLR0913, PLR0917  # one for each flag
    compute_domains: bool,
    imex_mode: str,
    daemon_image: str,
    daemon_pull_policy: str,
    daemon_pull_secret: tuple[str, ...],
    daemon_service_account: str,
    daemon_priority_class: str,
    daemon_resources: str,
    daemon_log_level: int,
    max_nodes_per_imex_domain: int,
    imex_tls_issuer: str,
    daemon_network_policy: bool,
) -> DaemonSettings | None:
    if not compute_domains:
        return None
    managed = imex_mode == "hostManaged"
    if not managed and not daemon_image:
        raise InputError(
            "--compute-domains needs --daemon-image, the image of this driver, for the daemons of domains;"
            " with --imex-mode hostManaged there are no daemons"
        )
    if managed and imex_tls_issuer:
        raise InputError(
            "--imex-tls-issuer is for daemons of this driver: with --imex-mode hostManaged, the administrator"
            " configures TLS of nvidia-imex on the nodes"
        )
    return DaemonSettings(
        daemon_image,
        daemon_pull_policy,
        tuple(filter(None, daemon_pull_secret)),
        daemon_service_account,
        daemon_priority_class,
        _resources(daemon_resources),
        daemon_log_level,
        max_nodes_per_imex_domain,
        _issuer(imex_tls_issuer),
        daemon_network_policy,
        managed,
    )


def _resources(text: str) -> dict[str, Any]:
    try:
        value = json.loads(text or "{}")
    except ValueError as error:
        raise InputError(f"--daemon-resources: not JSON: {error}") from None
    if not isinstance(value, dict) or not all(
        name in ("requests", "limits") and isinstance(amounts, dict) for name, amounts in value.items()
    ):
        raise InputError(
            '--daemon-resources must be the requests and limits of a container: {"requests": {"cpu": "1"}}'
        )
    try:  # the server stores the canonical form, and what is stored is compared
        return {
            name: {resource: str(Quantity.parse(str(amount))) for resource, amount in amounts.items()}
            for name, amounts in value.items()
        }
    except QuantityError as error:
        raise InputError(f"--daemon-resources: {error}") from None


def _issuer(text: str) -> tuple[str, str] | None:
    if not text:
        return None
    kind, slash, name = text.partition("/")
    if kind not in ISSUERS or not slash or not name or "/" in name:
        raise InputError(f"--imex-tls-issuer {text!r} must be {' or '.join(f'{issuer}/NAME' for issuer in ISSUERS)}")
    return kind, name


compute_domain_options = flags(
    "domains",
    _settings,
    flag("--compute-domains", is_flag=True, help="Manage ComputeDomains: memory shared between nodes over NVLink."),
    flag(
        "--imex-mode",
        type=click.Choice(["driverManaged", "hostManaged"]),
        default="driverManaged",
        help="Who runs nvidia-imex: this driver, in a DaemonSet for each domain, or the administrator of the nodes.",
    ),
    flag("--daemon-image", default="", metavar="IMAGE", help="The image of the pods of domains."),
    flag(
        "--daemon-pull-policy",
        type=click.Choice(["Always", "IfNotPresent", "Never"]),
        default="IfNotPresent",
        help="When nodes pull the image.",
    ),
    flag(
        "--daemon-pull-secret",
        multiple=True,
        metavar="NAME",
        help="A Secret in --namespace for pulling the image. Can be repeated.",
    ),
    flag(
        "--daemon-service-account",
        default="compute-domain-daemon-service-account",
        metavar="NAME",
        help="The service account in --namespace of the pods of domains. It owns the objects that domains need.",
    ),
    flag(
        "--daemon-priority-class",
        default="system-node-critical",
        metavar="NAME",
        help="The priority of the pods of domains.",
    ),
    flag(
        "--daemon-resources",
        default="{}",
        metavar="JSON",
        help='The resources of the container of the pods of domains, such as {"requests": {"cpu": "100m"}}.',
    ),
    flag(
        "--daemon-log-level",
        type=click.IntRange(min=0),
        default=0,
        show_default=True,
        help="How much the daemons log, like -v.",
    ),
    flag(
        "--max-nodes-per-imex-domain",
        type=click.IntRange(min=1),
        default=18,
        help="How many nodes of one NVLink clique a domain can have. Larger cliques raise it by themselves.",
    ),
    flag(
        "--imex-tls-issuer",
        default="",
        metavar="KIND/NAME",
        help="An Issuer or ClusterIssuer of cert-manager. If set, daemons of a domain use TLS between each other.",
    ),
    flag(
        "--daemon-network-policy/--no-daemon-network-policy",
        default=True,
        help="Whether only daemons of the same domain may connect to a daemon.",
    ),
)
"""Adds these flags, and passes DaemonSettings as `domains`, or None without --compute-domains."""

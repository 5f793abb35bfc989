# SPDX-License-Identifier: Apache-2.0
"""The objects that a domain needs, as JSON, and whether a stored object is as it should be. Pure.

Objects in the driver's namespace belong to the service account of the daemons, so that the garbage collector removes
them when the driver is uninstalled. A ComputeDomain, which is in another namespace, cannot own them.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from dra_driver.domains.daemon import COMMAND_PORT, PEER_PORT
from dra_driver.domains.names import CLIQUE_LABEL, DOMAIN_LABEL, TARGET_LABEL, daemon_name, host_name
from dra_driver.domains.objects import (
    COMPUTE_DOMAINS,
    INDICES_ANNOTATION,
    SLOTS_ANNOTATION,
    Clique,
    ComputeDomain,
    encode_member,
)
from dra_driver.domains.template import channel_claim, daemon_claim
from dra_driver.kube.api import Kind
from dra_driver.kube.api.client import JSON
from dra_driver.kube.kinds import CERTIFICATES, DAEMON_SETS, NETWORK_POLICIES, templates_of
from dra_driver.kube.resource.codec import Dialect, encode_claim_spec

from .facts import StoredFacts
from .settings import DaemonSettings, DomainSettings

REVISION_ANNOTATION: Final = "resource.nvidia.com/computeDomain.revision"
"""A hash of the spec that this driver gave to the object."""
FINALIZER: Final = DOMAIN_LABEL
"""The finalizer of NVIDIA's driver on ComputeDomains, templates and DaemonSets."""
TLS_FOLDER: Final = "/imexd-tls"
STATE_FOLDER: Final = "/var/run/nvidia-imex"
"""Where nvidia-imex keeps what it needs to recover after a restart of the container."""
HTTP_PORT: Final = 8080
IMEX_PORTS: Final = {"imex": PEER_PORT, "imex-command": COMMAND_PORT}
_GRACE_SECONDS = 30


@dataclass(frozen=True, slots=True)
class Account:
    """The service account of the daemons, which owns the objects in the driver's namespace."""

    name: str
    uid: str


@dataclass(frozen=True, slots=True)
class Desired:
    """An object as it should be. `fixed` is the path of fields that the API server does not let anybody change."""

    kind: Kind
    value: JSON
    fixed: tuple[str, ...] = ()

    @property
    def namespace(self) -> str:
        """The namespace of the object."""
        return str(self.value["metadata"]["namespace"])

    @property
    def name(self) -> str:
        """The name of the object."""
        return str(self.value["metadata"]["name"])

    @property
    def _metadata(self) -> JSON:
        return {key: self.value["metadata"][key] for key in ("labels", "annotations", "ownerReferences")}

    def is_stored(self, content: Mapping[str, Any]) -> bool:
        """Whether an object with this content is as it should be. Fields that only the server or others set, such as
        defaults and further labels, do not count.
        """
        return _covers(content, {"metadata": self._metadata, "spec": self.value["spec"]})

    def change(self, found: StoredFacts) -> JSON:
        """The merge patch that makes a stored object what it should be, if it still has its resource version."""
        others = [finalizer for finalizer in found.finalizers if finalizer != FINALIZER]
        place = {"uid": found.uid, "resourceVersion": found.resource_version, "finalizers": others or None}
        meta = self._metadata | place
        return {"metadata": meta} if self.fixed == ("spec",) else {"metadata": meta, "spec": self.value["spec"]}

    def needs_replacement(self, content: Mapping[str, Any]) -> bool:
        """Whether a fixed field differs, so that only another object can be as it should be."""
        if not self.fixed:
            return False
        wanted: Any = self.value
        for step in self.fixed:
            wanted, content = wanted[step], content.get(step) or {}
        return not _covers(content, wanted)


def _covers(found: Any, wanted: Any) -> bool:
    """Whether everything that is wanted is there. An empty value is the same as none."""
    if not wanted:
        return not found
    if isinstance(wanted, dict):
        return isinstance(found, dict) and all(_covers(found.get(key), value) for key, value in wanted.items())
    if isinstance(wanted, list):
        return isinstance(found, list) and len(found) == len(wanted) and all(map(_covers, found, wanted))
    return bool(found == wanted)


def workload_template(domain: ComputeDomain, dialect: Dialect, *, host_managed: bool) -> Desired:
    """The template of the claims of the workload. It belongs to the ComputeDomain."""
    claim = channel_claim(domain.uid, all_channels=domain.all_channels and not host_managed)
    owner = _owner(COMPUTE_DOMAINS.api_version, "ComputeDomain", domain.name, domain.uid)
    spec = {"spec": encode_claim_spec(claim, dialect)}
    labels = {DOMAIN_LABEL: domain.uid, TARGET_LABEL: "Workload"}
    metadata = {"name": domain.template, "namespace": domain.namespace, "ownerReferences": [owner], "labels": labels}
    return _desired(templates_of(dialect), "ResourceClaimTemplate", metadata, spec, ("spec",))


def daemon_objects(
    domain: ComputeDomain, dialect: Dialect, settings: DomainSettings, account: Account, slots: int
) -> list[Desired]:
    """The objects in the driver's namespace. `slots` is the number of names in certificates."""
    name, uid, daemons = daemon_name(domain.uid), domain.uid, settings.daemons
    owner = _owner("v1", "ServiceAccount", account.name, account.uid)
    labels = {DOMAIN_LABEL: uid}
    template = {"spec": encode_claim_spec(daemon_claim(uid), dialect)}
    metadata: JSON = {"name": name, "namespace": settings.namespace, "ownerReferences": [owner], "labels": labels}
    of_daemon = {**metadata, "labels": {**labels, TARGET_LABEL: "Daemon"}}
    made = [
        _desired(templates_of(dialect), "ResourceClaimTemplate", of_daemon, template, ("spec",)),
        _desired(DAEMON_SETS, "DaemonSet", metadata, _daemon_set(uid, daemons), ("spec", "selector")),
    ]
    if daemons.network_policy:
        made.append(_desired(NETWORK_POLICIES, "NetworkPolicy", metadata, _policy(uid)))
    if daemons.issuer is not None:
        made.append(_desired(CERTIFICATES, "Certificate", metadata, _certificate(uid, daemons.issuer, slots)))
    return made


def clique_object(clique: Clique, account: Account) -> JSON:
    """The object with the members of a domain in one clique."""
    return {
        "apiVersion": COMPUTE_DOMAINS.api_version,
        "kind": "ComputeDomainClique",
        "metadata": {
            "name": clique.name,
            "namespace": clique.namespace,
            "labels": {DOMAIN_LABEL: clique.domain_uid, CLIQUE_LABEL: clique.clique},
            "annotations": {
                INDICES_ANNOTATION: json.dumps(clique.indices, separators=(",", ":")),
                SLOTS_ANNOTATION: str(clique.slots),
            },
            "ownerReferences": [_owner("v1", "ServiceAccount", account.name, account.uid)],
        },
        "daemons": [encode_member(member) for member in clique.members],
    }


def has_metadata(content: Mapping[str, Any], value: JSON) -> bool:
    """Whether a stored clique with this content has the labels and owners of `value`."""
    return all(_covers(content["metadata"].get(key), value["metadata"][key]) for key in ("labels", "ownerReferences"))


def _owner(api_version: str, kind: str, name: str, uid: str) -> JSON:
    return {"apiVersion": api_version, "kind": kind, "name": name, "uid": uid, "controller": True}


def _desired(kind: Kind, kind_name: str, metadata: JSON, spec: JSON, fixed: tuple[str, ...] = ()) -> Desired:
    """The object, with an annotation that changes with its spec."""
    revision = hashlib.sha256(json.dumps(spec, sort_keys=True).encode()).hexdigest()[:16]
    noted = {**metadata, "annotations": {REVISION_ANNOTATION: revision}}
    value = {"apiVersion": kind.api_version, "kind": kind_name, "metadata": noted, "spec": spec}
    return Desired(kind, value, fixed)


def _daemon_set(uid: str, settings: DaemonSettings) -> JSON:
    labels = {DOMAIN_LABEL: uid}
    volumes: list[JSON] = [{"name": "state", "emptyDir": {}}]
    if settings.issuer is not None:
        volumes.append({"name": "tls", "secret": {"secretName": _secret_name(uid)}})
    pod = {
        "serviceAccountName": settings.service_account,
        "priorityClassName": settings.priority_class,
        "nodeSelector": labels,
        "tolerations": [{"operator": "Exists"}],
        "imagePullSecrets": [{"name": secret} for secret in settings.pull_secrets],
        "enableServiceLinks": False,
        "terminationGracePeriodSeconds": _GRACE_SECONDS,
        # Host names of members have no dots: with the usual five, each lookup would try all search domains.
        "dnsConfig": {"options": [{"name": "ndots", "value": "1"}]},
        "resourceClaims": [{"name": "daemon", "resourceClaimTemplateName": daemon_name(uid)}],
        "containers": [_container(settings)],
        "volumes": volumes,
    }
    return {
        "selector": {"matchLabels": labels},
        "updateStrategy": {"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": 1}},
        "template": {"metadata": {"labels": labels}, "spec": pod},
    }


def _container(settings: DaemonSettings) -> JSON:
    fields = {
        "NODE_NAME": "spec.nodeName",
        "POD_IP": "status.podIP",
        "POD_NAME": "metadata.name",
        "POD_NAMESPACE": "metadata.namespace",
    }
    values = {
        "NVIDIA_VISIBLE_DEVICES": "void",  # NVIDIA's container runtime, where it is the default, adds nothing
        "HTTP_ENDPOINT": f":{HTTP_PORT}",
        "LOG_VERBOSITY": str(settings.log_level),
    }
    if settings.issuer is not None:
        values["IMEX_ENABLE_AUTH_ENCRYPTION"] = "1"
    env: list[JSON] = [{"name": name, "valueFrom": {"fieldRef": {"fieldPath": path}}} for name, path in fields.items()]
    env += [{"name": name, "value": value} for name, value in values.items()]
    ports = {"http": HTTP_PORT, **IMEX_PORTS}
    container: JSON = {
        "name": "compute-domain-daemon",
        "image": settings.image,
        "imagePullPolicy": settings.pull_policy,
        "command": ["dra-imex-daemon"],
        "env": env,
        "ports": [{"name": name, "containerPort": port, "protocol": "TCP"} for name, port in ports.items()],
        "livenessProbe": _probe("/healthz", 10, 6),
        "readinessProbe": _probe("/readyz", 5, 1),
        "resources": {**settings.resources, "claims": [{"name": "daemon"}]},
        # The hosts file, the folder that the plugin shares, and the device of the capability belong to root.
        "securityContext": {
            "runAsUser": 0,
            "runAsGroup": 0,
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        },
        "volumeMounts": [{"name": "state", "mountPath": STATE_FOLDER}],
    }
    if settings.issuer is not None:
        container["volumeMounts"].append({"name": "tls", "mountPath": TLS_FOLDER, "readOnly": True})
    return container


def _probe(path: str, period: int, failures: int) -> JSON:
    request = {"path": path, "port": "http"}
    return {"httpGet": request, "periodSeconds": period, "timeoutSeconds": 5, "failureThreshold": failures}


def _policy(uid: str) -> JSON:
    """Only daemons of the same domain may connect to nvidia-imex, which trusts every peer unless TLS is on."""
    selector = {"matchLabels": {DOMAIN_LABEL: uid}}
    imex = [{"protocol": "TCP", "port": port} for port in IMEX_PORTS.values()]
    return {
        "podSelector": selector,
        "policyTypes": ["Ingress"],
        "ingress": [
            {"from": [{"podSelector": selector}], "ports": imex},
            {"ports": [{"protocol": "TCP", "port": HTTP_PORT}]},
        ],
    }


def _secret_name(uid: str) -> str:
    return f"{daemon_name(uid)}-tls"


def _certificate(uid: str, issuer: tuple[str, str], slots: int) -> JSON:
    kind, name = issuer
    return {
        "secretName": _secret_name(uid),
        "secretTemplate": {"labels": {DOMAIN_LABEL: uid}},
        "issuerRef": {"group": CERTIFICATES.group, "kind": kind, "name": name},
        "dnsNames": [host_name(uid, index) for index in range(slots)],
        "usages": ["digital signature", "key encipherment", "server auth", "client auth"],
    }

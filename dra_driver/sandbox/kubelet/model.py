# SPDX-License-Identifier: Apache-2.0
"""The parts of a core/v1 Pod that kubelet needs: which containers use which requests of which claims.

ResourceClaims are read as the project's own types (`dra_driver.kube.resource`).
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

TERMINAL_PHASES = frozenset({"Succeeded", "Failed"})
RUN_SECONDS = "sandbox.gpu.nvidia.com/run-seconds"
"""An annotation of pods: after so many seconds, the containers end successfully. Without it, they run on."""
SHORT_RUN = "5"
"""The value for pods of Jobs and for the hooks of Helm, such as `helm test`. Jobs and Helm wait for their end."""
_HELM_HOOK = "helm.sh/hook"

EXTENDED = ""
"""The name of the PodClaim for extended resources, which no entry of a pod has."""


@dataclass(frozen=True, slots=True)
class PodClaim:
    """An entry of spec.resourceClaims and its ResourceClaim, or the claim that the scheduler made (`EXTENDED`)."""

    name: str
    claim: str
    """Empty: no claim was needed, or it is not `created` yet."""
    generated: bool = False
    """Whether the claim is made from a template. It must belong to the pod."""
    created: bool = True


@dataclass(frozen=True, slots=True)
class ContainerClaim:
    """What a container uses: a PodClaim by name, and a request in it (empty: all requests)."""

    name: str
    request: str = ""


@dataclass(frozen=True, slots=True)
class HttpProbe:
    """A probe with `httpGet`, every `period` seconds."""

    path: str
    port: int
    period: float = 10.0


@dataclass(frozen=True, slots=True)
class Container:
    """A container. A `sidecar` is an init container that stays.

    `command` includes the arguments. `fields` has the variables of `env` whose value is a field of the pod.
    """

    name: str
    image: str = ""
    command: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    fields: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    readiness: HttpProbe | None = None
    claims: tuple[ContainerClaim, ...] = ()
    sidecar: bool = False


@dataclass(frozen=True, slots=True)
class KubeletPod:
    """A pod bound to a node. `raw` is the API object."""

    namespace: str
    name: str
    uid: str
    claims: tuple[PodClaim, ...] = ()
    init_containers: tuple[Container, ...] = ()
    containers: tuple[Container, ...] = ()
    phase: str = "Pending"
    deleting: bool = False
    run_seconds: float | None = None
    group: str = ""
    """The name of its PodGroup."""
    raw: Mapping[str, Any] = field(default_factory=lambda: MappingProxyType({}), compare=False)

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"

    def field(self, path: str, address: str) -> str:
        """Return the value of a field for a variable of a container (fieldRef). `address` is the pod's.

        Fields that no program of the sandbox reads are empty.
        """
        values = {
            "metadata.name": self.name,
            "metadata.namespace": self.namespace,
            "spec.nodeName": str(self.raw["spec"].get("nodeName", "")),
            "status.podIP": address,
        }
        return values.get(path, "")

    @property
    def grace_period(self) -> float:
        """The seconds from SIGTERM to SIGKILL when the pod ends."""
        asked = self.raw.get("metadata", {}).get("deletionGracePeriodSeconds")
        usual = self.raw.get("spec", {}).get("terminationGracePeriodSeconds", 30)
        return float(max(1, usual if asked is None else asked))

    @property
    def all_containers(self) -> tuple[Container, ...]:
        """All containers in the order in which they start."""
        return (*self.init_containers, *self.containers)

    @property
    def terminal(self) -> bool:
        """Whether the pod has ended."""
        return self.phase in TERMINAL_PHASES


def differs(old: KubeletPod, new: KubeletPod) -> bool:
    """Return whether the change makes kubelet process the pod again. A change of the status does not."""
    metadata = ("labels", "annotations", "deletionTimestamp", "deletionGracePeriodSeconds")
    before, after = old.raw.get("metadata", {}), new.raw.get("metadata", {})
    return old.raw.get("spec") != new.raw.get("spec") or any(before.get(key) != after.get(key) for key in metadata)


def decode_pod(raw: Mapping[str, Any]) -> KubeletPod:
    """Decode a pod. `raw` keeps all other fields."""
    metadata, spec, status = raw["metadata"], raw.get("spec") or {}, raw.get("status") or {}
    extended = status.get("extendedResourceClaimStatus") or {}
    mappings = extended.get("requestMappings") or ()
    return KubeletPod(
        namespace=metadata["namespace"],
        name=metadata["name"],
        uid=metadata["uid"],
        claims=tuple(_claims(spec, status)),
        init_containers=tuple(_container(container, mappings) for container in spec.get("initContainers") or ()),
        containers=tuple(_container(container, mappings) for container in spec.get("containers") or ()),
        phase=status.get("phase") or "Pending",
        deleting=bool(metadata.get("deletionTimestamp")),
        group=(spec.get("schedulingGroup") or {}).get("podGroupName") or "",
        run_seconds=_run_seconds(metadata.get("annotations") or {}),
        raw=raw,
    )


def _run_seconds(annotations: Mapping[str, str]) -> float | None:
    """Return the seconds after which a pod succeeds, or None: it runs until it is deleted."""
    text = annotations.get(RUN_SECONDS, SHORT_RUN if _HELM_HOOK in annotations else None)
    try:
        return None if text is None else float(text)
    except ValueError:
        return None


def _claims(spec: Mapping[str, Any], status: Mapping[str, Any]) -> Iterator[PodClaim]:
    made = {entry["name"]: entry.get("resourceClaimName") for entry in status.get("resourceClaimStatuses") or ()}
    for reference in spec.get("resourceClaims") or ():
        name = reference["name"]
        if claim := reference.get("resourceClaimName"):
            yield PodClaim(name, claim)
        else:
            yield PodClaim(name, made.get(name) or "", generated=True, created=name in made)
    if extended := status.get("extendedResourceClaimStatus"):
        yield PodClaim(EXTENDED, extended["resourceClaimName"])


def _container(raw: Mapping[str, Any], mappings: Iterable[Mapping[str, str]]) -> Container:
    """Decode a container. `mappings` are the requests that serve the extended resources of containers."""
    resources, variables = raw.get("resources") or {}, raw.get("env") or ()
    fields = {entry["name"]: (entry.get("valueFrom") or {}).get("fieldRef") for entry in variables}
    return Container(
        name=raw["name"],
        image=raw.get("image") or "",
        command=(*(raw.get("command") or ()), *(raw.get("args") or ())),
        # variables with other sources are empty, because no program reads them
        env={entry["name"]: entry.get("value") or "" for entry in variables},
        fields={name: reference["fieldPath"] for name, reference in fields.items() if reference},
        readiness=_http_probe(raw.get("readinessProbe") or {}, raw.get("ports") or ()),
        claims=(
            *(ContainerClaim(claim["name"], claim.get("request") or "") for claim in resources.get("claims") or ()),
            *(
                ContainerClaim(EXTENDED, mapping["requestName"])
                for mapping in mappings
                if mapping["containerName"] == raw["name"]
            ),
        ),
        sidecar=raw.get("restartPolicy") == "Always",
    )


def _http_probe(raw: Mapping[str, Any], ports: Iterable[Mapping[str, Any]]) -> HttpProbe | None:
    """Return the HTTP probe, or None: kubelet does not support other ones here. Ports may have names."""
    get = raw.get("httpGet")
    if not get:
        return None
    named = {port.get("name"): port["containerPort"] for port in ports}
    return HttpProbe(get.get("path") or "/", int(named.get(get["port"], get["port"])), raw.get("periodSeconds") or 10)

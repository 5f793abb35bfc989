# SPDX-License-Identifier: Apache-2.0
"""The parts of a core/v1 Pod that kubelet needs: which containers use which requests of which claims.

ResourceClaims are read as the project's own types (`dra_driver.resource`).
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

TERMINAL_PHASES = frozenset({"Succeeded", "Failed"})
RUN_SECONDS = "sandbox.gpu.nvidia.com/run-seconds"
"""An annotation of pods: after so many seconds, the containers end successfully. Without it, they run on."""


@dataclass(frozen=True, slots=True)
class PodClaim:
    """An entry of spec.resourceClaims: a claim by name, or a claim from a template."""

    name: str
    claim_name: str | None = None
    template_name: str | None = None


@dataclass(frozen=True, slots=True)
class ContainerClaim:
    """An entry of resources.claims: a PodClaim by name, and a request in it (empty: all requests)."""

    name: str
    request: str = ""


@dataclass(frozen=True, slots=True)
class Container:
    """A container. `requested` are the resources that it requests. A `sidecar` is an init container that stays."""

    name: str
    image: str = ""
    env: tuple[str, ...] = ()
    claims: tuple[ContainerClaim, ...] = ()
    requested: frozenset[str] = frozenset()
    sidecar: bool = False


@dataclass(frozen=True, slots=True)
class RequestMapping:
    """The request of the pod's claim for extended resources that serves a resource of a container."""

    container: str
    resource: str
    request: str


@dataclass(frozen=True, slots=True)
class Pod:
    """A pod bound to a node. `raw` is the API object."""

    namespace: str
    name: str
    uid: str
    claims: tuple[PodClaim, ...] = ()
    generated_claims: Mapping[str, str | None] = field(default_factory=lambda: MappingProxyType({}))
    """The claim that was created for each PodClaim by its name. None: no claim was needed."""
    init_containers: tuple[Container, ...] = ()
    containers: tuple[Container, ...] = ()
    extended_claim: str | None = None
    """The claim that the scheduler created for the pod's extended resources."""
    extended_requests: tuple[RequestMapping, ...] = ()
    phase: str = "Pending"
    deleting: bool = False
    run_seconds: float | None = None
    raw: Mapping[str, Any] = field(default_factory=lambda: MappingProxyType({}), compare=False)

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"

    @property
    def all_containers(self) -> tuple[Container, ...]:
        """All containers in the order in which they start."""
        return (*self.init_containers, *self.containers)

    @property
    def terminal(self) -> bool:
        """Whether the pod has ended."""
        return self.phase in TERMINAL_PHASES


def differs(old: Pod, new: Pod) -> bool:
    """Return whether the change makes kubelet process the pod again. A change of the status does not."""
    metadata = ("labels", "annotations", "deletionTimestamp", "deletionGracePeriodSeconds")
    before, after = old.raw.get("metadata", {}), new.raw.get("metadata", {})
    return old.raw.get("spec") != new.raw.get("spec") or any(before.get(key) != after.get(key) for key in metadata)


def decode_pod(raw: Mapping[str, Any]) -> Pod:
    """Decode a pod. `raw` keeps all other fields."""
    metadata, spec, status = raw["metadata"], raw.get("spec") or {}, raw.get("status") or {}
    extended = status.get("extendedResourceClaimStatus") or {}
    return Pod(
        namespace=metadata["namespace"],
        name=metadata["name"],
        uid=metadata["uid"],
        claims=tuple(
            PodClaim(claim["name"], claim.get("resourceClaimName"), claim.get("resourceClaimTemplateName"))
            for claim in spec.get("resourceClaims") or ()
        ),
        generated_claims={
            claim["name"]: claim.get("resourceClaimName") for claim in status.get("resourceClaimStatuses") or ()
        },
        init_containers=_containers(spec.get("initContainers")),
        containers=_containers(spec.get("containers")),
        extended_claim=extended.get("resourceClaimName"),
        extended_requests=tuple(
            RequestMapping(entry["containerName"], entry["resourceName"], entry["requestName"])
            for entry in extended.get("requestMappings") or ()
        ),
        phase=status.get("phase") or "Pending",
        deleting=bool(metadata.get("deletionTimestamp")),
        run_seconds=_seconds((metadata.get("annotations") or {}).get(RUN_SECONDS)),
        raw=raw,
    )


def _seconds(text: str | None) -> float | None:
    """Return a number of seconds, or None for any other text."""
    try:
        return None if text is None else float(text)
    except ValueError:
        return None


def _containers(raw: Iterable[Mapping[str, Any]] | None) -> tuple[Container, ...]:
    return tuple(_container(container) for container in raw or ())


def _container(raw: Mapping[str, Any]) -> Container:
    resources = raw.get("resources") or {}
    return Container(
        name=raw["name"],
        image=raw.get("image") or "",
        # variables with valueFrom are empty, because no program reads them
        env=tuple(f"{entry['name']}={entry.get('value') or ''}" for entry in raw.get("env") or ()),
        claims=tuple(
            ContainerClaim(claim["name"], claim.get("request") or "") for claim in resources.get("claims") or ()
        ),
        requested=frozenset(
            name for name, quantity in (resources.get("requests") or {}).items() if str(quantity) != "0"
        ),
        sidecar=raw.get("restartPolicy") == "Always",
    )

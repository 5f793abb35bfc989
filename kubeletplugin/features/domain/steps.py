# SPDX-License-Identifier: Apache-2.0
"""The steps of claims for channels and daemons. They change only files, and need no NVIDIA driver."""

from collections.abc import Hashable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

from dra_driver.domains.daemon.report import read_report
from dra_driver.domains.names import IMEX_FOLDER, daemon_name
from dra_driver.kube.resource.codec import Fields

from ...claims.call import Call
from ...claims.model import JSON, NO_EDITS, Device, IdleStep, Plan, SpecPlace, Step, Undoable
from ...containers import cdi
from ...kinds.daemon import DaemonKind
from ...kinds.domain import DOMAIN_KEY, DomainName
from ...node.node import Node
from .folder import DomainFolder

_FOLDER_OPTIONS: Final = ("rw", "nosuid", "nodev", "noexec", "rbind", "rprivate")


def _folder(node: Node) -> DomainFolder:
    return DomainFolder(node.folders.domain_folder)


@dataclass(frozen=True, slots=True)
class DomainStep(Step):
    """A step for claims of the ComputeDomain `domain`."""

    NVML = False

    domain: DomainName

    @property
    def key(self) -> str:
        """The node's one domain."""
        return DOMAIN_KEY

    @property
    def target(self) -> str:
        """The node."""
        return "the node"

    @property
    def mark(self) -> Hashable:
        """The UID of the domain, which is all that marks have."""
        return self.TAG, self.domain.uid

    @property
    def remains(self) -> str:
        """Nothing: all of it is in the driver's folder."""
        return ""

    def to_json(self) -> JSON:
        """See Step."""
        return {"domain": self.domain.to_json()}


@dataclass(frozen=True, slots=True)
class MembershipStep(DomainStep):
    """The node is in the domain, as its mark tells."""

    TAG = "membership"
    IN_CONTAINERS = False

    def __str__(self) -> str:
        return f"membership in {self.domain}"

    def do(self, node: Node, call: Call) -> Mapping[str, JSON]:
        """Write the mark."""
        _folder(node).join(self.domain.uid)
        return {}

    def is_done(self, node: Node) -> bool:
        """Whether the mark tells this domain."""
        return _folder(node).domain() == self.domain.uid

    def is_marked(self, node: Node) -> bool:
        """Whether the mark tells this domain."""
        return self.is_done(node)

    def undo(self, node: Node, call: Call) -> str:
        """Remove the mark."""
        if self.is_done(node):
            _folder(node).leave()
        return ""

    def clash(self, owner: Plan, other: Plan) -> str:
        """A node can be in one domain."""
        for step in other.steps:
            if isinstance(step, MembershipStep) and step.domain.uid != self.domain.uid:
                return (
                    f"the node is in {step.domain} at the moment, because of {other.claim}; a node can be in one"
                    f" ComputeDomain at a time, and kubelet tries again for {self.domain}"
                )
        return ""

    @classmethod
    def strays(cls, node: Node) -> Iterator[Undoable]:
        """The domain of the mark."""
        if uid := _folder(node).domain():
            yield cls(DomainName(uid))

    @classmethod
    def forget(cls, node: Node) -> None:
        """Remove the mark."""
        _folder(node).leave()

    @classmethod
    def from_json(cls, fields: Fields, devices: Mapping[str, Device]) -> "MembershipStep":
        """See Step."""
        return cls(DomainName.from_json(fields.required_object("domain")))


@dataclass(frozen=True, slots=True)
class DaemonReadyStep(IdleStep, DomainStep):
    """The IMEX daemon of the domain is ready on this node. `namespace` is that of the daemon's pods, for messages."""

    TAG = "daemonReady"
    WAITS = True

    namespace: str = field(default="", compare=False)

    def __str__(self) -> str:
        return f"readiness of the daemon of {self.domain}"

    def waits_for(self, node: Node) -> str:
        """Why the daemon is not ready, as it reports."""
        report = read_report(_folder(node).of_domain(self.domain.uid))
        if report is not None and report.ready:
            return ""
        about = f"the IMEX daemon of {self.domain} on this node"
        look = f"kubectl describe computedomain -n {self.domain.namespace} {self.domain.name}"
        if report is None:
            place = f"namespace {self.namespace}" if self.namespace else "the driver's namespace"
            return (
                f"{about} does not run yet: look at the pods {daemon_name(self.domain.uid)}-* in {place}, and at the"
                f" conditions of the domain ({look}); kubelet tries again"
            )
        problem = report.message or f"its state is {report.state or 'unknown'}"
        return f"{about} is not ready: {problem} ({look} shows all nodes); kubelet tries again"

    def to_json(self) -> JSON:
        """See Step."""
        return {**DomainStep.to_json(self), "namespace": self.namespace}

    @classmethod
    def from_json(cls, fields: Fields, devices: Mapping[str, Device]) -> "DaemonReadyStep":
        """See Step."""
        return cls(DomainName.from_json(fields.required_object("domain")), fields.text("namespace"))


@dataclass(frozen=True, slots=True)
class DaemonFolderStep(DomainStep):
    """The folder that the domain's daemon shares with this plugin."""

    TAG = "daemonFolder"

    def __str__(self) -> str:
        return f"folder of the daemon of {self.domain}"

    def do(self, node: Node, call: Call) -> Mapping[str, JSON]:
        """Make the folder."""
        _folder(node).make(self.domain.uid)
        return {}

    def is_done(self, node: Node) -> bool:
        """Whether the folder exists."""
        return _folder(node).of_domain(self.domain.uid).is_dir()

    def is_marked(self, node: Node) -> bool:
        """Whether something has the folder's name."""
        return self.domain.uid in _folder(node).existing()

    def undo(self, node: Node, call: Call) -> str:
        """Take the folder away. What a daemon has left in it is removed bit by bit."""
        try:
            _folder(node).remove(self.domain.uid)
        except OSError as error:
            return str(error)
        return ""

    def clash(self, owner: Plan, other: Plan) -> str:
        """A node can have one daemon."""
        if owner is other:
            return ""
        for step in other.steps:
            if isinstance(step, DaemonFolderStep):
                return (
                    f"the node still has the daemon of {step.domain} (claim {other.claim}); a node can have one, and"
                    " kubelet tries again"
                )
        return ""

    def edits(self, place: SpecPlace, device: Device) -> cdi.ContainerEdits:
        """The folder, in the container of the daemon."""
        if not isinstance(device.kind, DaemonKind):
            return NO_EDITS
        folder = _folder(place.node).of_domain(self.domain.uid)
        return cdi.ContainerEdits(mounts=(cdi.Mount(str(folder), IMEX_FOLDER, _FOLDER_OPTIONS),))

    @classmethod
    def strays(cls, node: Node) -> Iterator[Undoable]:
        """The folders, and what is left of them."""
        folder = _folder(node)
        yield from (cls(DomainName(uid)) for uid in folder.existing())
        if folder.has_trash():
            yield TrashedFolders()

    @classmethod
    def forget(cls, node: Node) -> None:
        """Take all folders away."""
        folder = _folder(node)
        for uid in folder.existing():
            folder.remove(uid)

    @classmethod
    def from_json(cls, fields: Fields, devices: Mapping[str, Device]) -> "DaemonFolderStep":
        """See Step."""
        return cls(DomainName.from_json(fields.required_object("domain")))


@dataclass(frozen=True, slots=True)
class TrashedFolders(Undoable):
    """What is left of the folders of daemons."""

    NVML = False

    def __str__(self) -> str:
        return "what daemons of ComputeDomains have left in their folders"

    @property
    def key(self) -> str:
        """The node's one domain."""
        return DOMAIN_KEY

    @property
    def mark(self) -> Hashable:
        """There is one."""
        return type(self)

    @property
    def remains(self) -> str:
        """Nothing: all of it is in the driver's folder."""
        return ""

    def undo(self, node: Node, call: Call) -> str:
        """Remove some of it."""
        return _folder(node).empty_trash()

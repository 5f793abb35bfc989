# SPDX-License-Identifier: Apache-2.0
"""What channels and daemons have in common: their ComputeDomain, and the clique of their node."""

from dataclasses import dataclass
from typing import Final

from dra_driver.kube.resource.codec import Fields

from ..claims.model import JSON, Kind

DOMAIN_KEY: Final = "the ComputeDomain of this node"
"""What is locked while claims of ComputeDomains change. There is one domain, and one folder of the driver, per node."""


@dataclass(frozen=True, slots=True)
class DomainName:
    """A ComputeDomain. Of the mark of a domain, only the UID is known."""

    uid: str
    namespace: str = ""
    name: str = ""

    def __str__(self) -> str:
        return f"ComputeDomain {self.namespace}/{self.name}" if self.name else f"the ComputeDomain with UID {self.uid}"

    def to_json(self) -> JSON:
        """The names in records."""
        return {"uid": self.uid, "namespace": self.namespace, "name": self.name}

    @classmethod
    def from_json(cls, fields: Fields) -> "DomainName":
        """The names of a record. Raises ValueError."""
        name = cls(fields.required_text("uid"), fields.text("namespace"), fields.text("name"))
        fields.finish()
        return name


@dataclass(frozen=True, slots=True)
class DomainKind(Kind):
    """A device of a ComputeDomain. `clique` is that of the node, and empty outside of a fabric."""

    domain: DomainName
    clique: str

    @property
    def keys(self) -> frozenset[str]:
        """The node's one domain."""
        return frozenset((DOMAIN_KEY,))

    @property
    def minor(self) -> int:
        """None: it is no GPU."""
        return -1

    def excludes(self, other: Kind) -> bool:
        """Never: pods share a channel. The steps decide which claims exclude each other."""
        return False

    def attributes(self, found: JSON) -> JSON:
        """The type."""
        return {"type": self.TAG}

    def to_json(self) -> JSON:
        """See Kind."""
        return {"domain": self.domain.to_json(), "clique": self.clique}

# SPDX-License-Identifier: Apache-2.0
"""Records of version 1, which releases before the shared engine wrote for claims with channels and daemons.

They are read as they are, so that an update changes nothing for running claims, and a rollback finds them again.
"""

from dra_driver.kube.resource.codec import Fields

from ...claims.model import ClaimRef, Device, Plan, Record, State
from ...kinds.channel import ChannelKind
from ...kinds.daemon import DaemonKind
from ...kinds.domain import DomainKind, DomainName
from .plan import domain_steps


def read_version_1(fields: Fields) -> Record:
    """The record of a file of version 1, of which the version was read already. Raises ValueError."""
    claim = fields.required_object("claim")
    ref = ClaimRef(claim.text("namespace"), claim.text("name"), claim.required_text("uid"))
    claim.finish()
    domain = DomainName.from_json(fields.required_object("domain"))
    clique, all_channels = fields.text("clique"), fields.flag("allChannels")
    host_managed = fields.flag("hostManaged")
    kind: DomainKind
    tag = fields.required_text("type")
    if tag == ChannelKind.TAG:
        kind = ChannelKind(domain, clique, all_channels)
    elif tag == DaemonKind.TAG:
        kind = DaemonKind(domain, clique)
    else:
        raise fields.error("type", f"{tag!r} is unknown")

    def device(entry: Fields) -> Device:
        found = Device(
            entry.required_text("name"), entry.required_text("request"), kind, share_id=entry.optional_text("shareID")
        )
        entry.finish()
        return found

    record = Record(
        State(fields.required_text("state")),
        fields.text("bootID"),
        Plan(
            ref,
            fields.required_text("pool"),
            fields.objects("devices", device),
            tuple(domain_steps(kind, "", host_managed=host_managed)),
        ),
    )
    fields.finish()
    return record

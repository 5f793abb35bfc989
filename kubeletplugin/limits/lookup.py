# SPDX-License-Identifier: Apache-2.0
"""The limits of prepared claims, from their records."""

from ..records.files import NewerVersionError, State
from ..records.format import Records
from .cgroups import LimitError
from .limiter import Limit, LimitOf


def recorded_limits(records: Records) -> LimitOf:
    """The limits of the devices of prepared claims."""

    def limit_of(claim: str, device: str) -> Limit:
        try:
            record = records.read(claim)
        except (OSError, ValueError, NewerVersionError) as error:
            raise LimitError(
                f"the claim with UID {claim} has no record on this node that can be read: {error}"
            ) from None
        found = next((one for one in record.plan.devices if one.cdi_name == device), None)
        if record.state is not State.PREPARED or found is None or found.memory_limit is None:
            raise LimitError(f"{record.plan.claim} is not prepared with the device {device} and a limit of its memory")
        return Limit(found.target.gpu_uuid, found.memory_limit)

    return limit_of

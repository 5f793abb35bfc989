# SPDX-License-Identifier: Apache-2.0
"""PodGroups: their claims, which a feature gate allows. Other fields are stored as they are."""

from typing import Final

from ..kinds import Context, KindStrategy
from ..objects import Object

_CLAIMS_GATE: Final = "DRAWorkloadResourceClaims"


def prepare(new: Object, old: Object | None, context: Context) -> None:
    """Drop the claims while their gate is disabled, unless the stored group has some."""
    stored = ((old or {}).get("spec") or {}).get("resourceClaims")
    if not stored and not context.release.enabled(_CLAIMS_GATE):
        (new.get("spec") or {}).pop("resourceClaims", None)


STRATEGY: Final = KindStrategy(prepare=prepare, generation=("spec",), status_keeps_metadata=True)

# SPDX-License-Identifier: Apache-2.0
"""CDI specs that NVIDIA's own DRA driver left in the folder that this one writes to.

Both name a claim's devices alike. A runtime that finds a device in two specs resolves it from neither.
"""

import shlex
from collections.abc import Iterator, Sequence
from pathlib import Path

from dra_driver.cdi import CLAIM_KIND, SpecDirectory

from .finding import Finding, warned
from .host import Host

CHECK = "cdi specs"
_NAMED = 3  # one by one; the command for all of them is in the remedy


def read_foreign(host: Host, cdi_root: Path) -> tuple[str, ...]:
    """The paths of those specs on the host, sorted."""
    try:
        found = SpecDirectory(host.here(str(cdi_root)), CLAIM_KIND).foreign_files()
    except OSError:  # which the finding about the folder tells
        return ()
    return tuple(str(cdi_root / path.name) for path in found)


def foreign_findings(paths: Sequence[str]) -> Iterator[Finding]:
    """A warning when there are any."""
    if not paths:
        return
    named = [Path(path).name for path in paths[:_NAMED]]
    more = f" and {len(paths) - _NAMED} more" if len(paths) > _NAMED else ""
    yield warned(
        CHECK,
        f"{Path(paths[0]).parent} has specs of NVIDIA's own DRA driver: {', '.join(named)}{more}; a claim that both"
        " drivers prepare has no device that a runtime can resolve",
        "while that driver runs, delete the pods of its claims, and it removes them; once it is uninstalled: rm "
        + " ".join(map(shlex.quote, paths)),
    )

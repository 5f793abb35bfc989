# SPDX-License-Identifier: Apache-2.0
"""A plugin whose work for some claims fails as nobody expected: `python -m tests.faults.broken FILE FLAG...`.

FILE has JSON, read again at each piece of work: the UIDs of claims by the kind of work that fails for them.
"""

import functools
import json
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from kubeletplugin.claims.planner import Planner
from kubeletplugin.claims.recovery import Recovery
from kubeletplugin.main import main
from kubeletplugin.reports.binding import BindingWatch
from kubeletplugin.reports.reporter import ClaimReports
from tests.support.plugin import Plugin
from tests.support.preloaded import start

POINTS: Mapping[str, tuple[type, str, Callable[..., str]]] = {
    "recover claim": (Recovery, "complete", lambda record, *_: str(record.plan.claim.uid)),
    "sweep claim": (Planner, "is_gone", lambda ref: str(ref.uid)),
    "report claim": (ClaimReports, "_write", lambda _, task: str(task.ref.uid)),
    "bind claim": (BindingWatch, "_say", lambda claim: str(claim["metadata"]["uid"])),
}
"""By the kind of work: the method that does it, and whose claim its arguments are about."""


class UnexpectedError(Exception):
    """Nobody expects it."""


class BrokenPlugin(Plugin):
    """A plugin that fails at what it is told to."""

    def spawn(self, *arguments: str) -> "subprocess.Popen[bytes]":
        """One more process of this node."""
        where = [f"--{name}={value}" for name, value in self.where.items()]
        command = [sys.executable, "-m", "tests.faults.broken", str(self._orders), "--node-name=node-a", *where, "-v4"]
        command += [f"--kubeconfig={self.kubeconfig}", *self.flags, *arguments]
        with self._log_file.open("ab") as log:
            return start(command, stdout=log, stderr=log)

    def break_(self, **uids: str) -> None:
        """From now on this work (with `_` for spaces) fails for the claim of this UID, and no other."""
        temporary = self._orders.with_suffix(".new")
        temporary.write_text(json.dumps({work.replace("_", " "): [uid] for work, uid in uids.items()}))
        temporary.replace(self._orders)

    @property
    def _orders(self) -> Path:
        return self.folder / "broken.json"


def _break(orders: Path, work: str) -> None:
    kind, name, uid_of = POINTS[work]
    whole = getattr(kind, name)

    @functools.wraps(whole)
    def broken(self: object, *arguments: Any) -> Any:
        uid = uid_of(*arguments)
        if orders.exists() and uid in json.loads(orders.read_bytes()).get(work, ()):
            raise UnexpectedError(f"claim {uid}")
        return whole(self, *arguments)

    setattr(kind, name, broken)


if __name__ == "__main__":
    for one in POINTS:
        _break(Path(sys.argv[1]), one)
    main(sys.argv[2:])

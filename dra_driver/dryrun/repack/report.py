# SPDX-License-Identifier: Apache-2.0
"""`dra-dryrun repack --report`: for each model, how many whole GPUs a perfect packing would add."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from rich.text import Text

from ...scheduler.repack import Packing, pack
from ..report import API_VERSION, Json, Line, PlainTable, counted
from ..status import ExitStatus
from .goals import large_devices
from .question import RepackQuestion, space_for

KIND: Final = "PackingReport"


@dataclass(frozen=True, slots=True)
class PackingReport:
    """The packing of each model."""

    where: str
    nodes: int
    models: Sequence[tuple[str, Packing]]

    @property
    def status(self) -> ExitStatus:
        """Always 0: it is no question of yes or no."""
        return ExitStatus.FITS

    def lines(self, *, wide: bool) -> Iterator[Line]:
        """A row for each model. `wide` adds nothing."""
        del wide
        yield Text(f"whole GPUs of {counted(self.nodes, 'node')}, from {self.where}", style="bold")
        if not self.models:
            yield Text("there are no GPUs to pack")
            return
        table = PlainTable("Free now", "Packed", "At most", "Model")
        for model, packing in self.models:
            table.add_row(packing.now, packing.found, packing.at_most, model)
        yield table
        yield Text("packed: if all pods that may move were placed anew, the largest first; at most: by any packing")

    def document(self) -> Json:
        """The packing as plain dicts and lists."""
        return {
            "apiVersion": API_VERSION,
            "kind": KIND,
            "source": self.where,
            "models": [
                {
                    "model": model,
                    "freeNow": packing.now,
                    "packed": packing.found,
                    "atMost": packing.at_most,
                }
                for model, packing in self.models
            ],
        }


def packing_report(question: RepackQuestion) -> PackingReport:
    """The report on a cluster. Raises InputError if its pods are not known."""
    goals = large_devices(question.source.objects)
    space, units, _ = space_for(question, goals)
    models = [(goal.model, pack(space, space.kind(unit))) for goal, unit in zip(goals, units, strict=True)]
    return PackingReport(question.source.where, len(space.sites), models)

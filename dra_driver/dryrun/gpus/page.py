# SPDX-License-Identifier: Apache-2.0
"""Who uses which GPU, as one HTML page without network and scripts, for phones and for print."""

from collections.abc import Iterator, Sequence
from dataclasses import replace

from ...gpu.picture import GpuPicture, NodePicture
from ...process.words import counted
from ..report.page import Html, figure, html_page, html_table, join, tag
from .groups import NodeGroup, joined_by_numbers
from .model import UsedGpu
from .tables import node_table, others_table, shown_time, users_table


def gpus_page(title: str, where: str, notes: Sequence[str], groups: Sequence[NodeGroup]) -> str:
    """The page: the numbers of all nodes, then each node with a picture of its GPUs and a table of their users."""
    rows = {"From": where, "Note": "; ".join(notes)}
    facts = tag("dl", *(tag("div", tag("dt", key), tag("dd", value)) for key, value in rows.items() if value))
    nodes = [node for group in groups for node in group.nodes if node.gpus]
    parts = [tag("section", html_table("GPUs of all nodes", node_table(joined_by_numbers(nodes)), "names-only"))]
    parts += [tag("section", tag("h2", group.name), *_content(group)) for group in groups]
    return html_page(title, facts, join(*parts))


def _content(group: NodeGroup) -> Iterator[Html]:
    node = group.first
    if len(group.nodes) > 1:
        yield tag("p", ", ".join(node.name for node in group.nodes))
    yield from (tag("p", problem, class_="note") for problem in node.problems)
    for gpu in node.gpus:
        for taint in gpu.taints:
            since = f" since {shown_time(taint.since)}" if taint.since else ""
            yield tag("p", f"{gpu.name}: {taint.text}{since}", class_="note")
    if node.gpus:
        pictures = tuple(_with_pods(gpu) for gpu in node.gpus)
        yield figure(NodePicture(node.name, pictures), closest=False)
        yield html_table(f"Users of {counted(len(node.gpus), 'GPU')}", users_table(group), "names-only")
    others = others_table([group], wide=True)
    if others.rows:
        yield html_table("Devices of other drivers", others, "names-only")


def _with_pods(gpu: UsedGpu) -> GpuPicture:
    """The picture of a GPU with the names of pods instead of those of claims."""
    pods = {use.claim: use.pods or (use.claim,) for _, use in gpu.uses}
    cells = tuple(
        replace(cell, held_by=tuple(pod for claim in cell.held_by for pod in pods.get(claim, (claim,))))
        for cell in gpu.picture.cells
    )
    return replace(gpu.picture, cells=cells)

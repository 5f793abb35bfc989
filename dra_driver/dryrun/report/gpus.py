# SPDX-License-Identifier: Apache-2.0
"""The GPUs of a node on the page: a row a GPU, boxes as wide as the memory slices that they stand for."""

from collections.abc import Iterator

from .html import Html, tag
from .picture import Cell, NodePicture, Row


def figure(picture: NodePicture, *, closest: bool) -> Html:
    """The picture with its caption and key. `closest`: the demand does not fit there, only nearly."""
    model = f" ({picture.model})" if picture.model else ""
    caption = f"GPUs of {picture.node}{', which comes closest' if closest else ''}{model}"
    kind = "gpus divided" if picture.divided else "gpus"
    rows = tag("ul", *(_row(row, "" if model else row.gpu.model) for row in picture.rows), class_=kind)
    # An area that scrolls has to be reachable by keyboard.
    return tag(
        "figure",
        tag("figcaption", caption),
        tag("div", rows, class_="scroll", role="region", aria_label=caption, tabindex="0"),
        _key(picture),
    )


def _row(row: Row, model: str) -> Html:
    name = tag("span", tag("b", row.name), tag("small", model) if model else "", class_="gpu")
    boxes = (box for cell in row.gpu.cells for box in _boxes(cell))
    columns = f"grid-template-columns:repeat({max(1, row.gpu.slices)},minmax(0,1fr))"
    return tag("li", name, tag("span", *boxes, class_="slices", style=columns))


def _boxes(cell: Cell) -> Iterator[Html]:
    if cell.proposed_for:
        yield _box("proposed", cell.count, cell.label, *cell.proposed_for, *cell.held_by)
    elif cell.held_by:
        yield _box("held", cell.count, cell.label, *cell.held_by)
    elif cell.devices:
        yield _box("free", cell.count, cell.label, "free")
    else:
        yield from (_box("free", 1, "", "free") for _ in range(cell.count))


def _box(kind: str, slices: int, label: str, *who: str) -> Html:
    lines = [tag("b", label)] if label else []
    lines += [tag("span", name) for name in who]
    return tag("span", *lines, class_=f"box {kind}", style=f"grid-column:span {slices}" if slices > 1 else "")


def _key(picture: NodePicture) -> Html:
    cells = [cell for gpu in picture.gpus for cell in gpu.cells]
    entries = {
        "proposed": ("this demand gets it", any(cell.proposed_for for cell in cells)),
        "held": ("a claim holds it", any(cell.held_by and not cell.proposed_for for cell in cells)),
        "free": ("free", any(cell.free for cell in cells)),
    }
    shown = [tag("li", tag("i", class_=f"box {kind}"), text) for kind, (text, there) in entries.items() if there]
    return tag("ul", *shown, class_="key")

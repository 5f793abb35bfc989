# SPDX-License-Identifier: Apache-2.0
"""A report as one HTML page to keep or send: no network, no scripts, light and dark, wide and narrow.

The GPUs of a node are rows of boxes, which are as wide as the memory slices that they stand for. Text becomes markup
only by `tag`, which escapes it.
"""

from collections.abc import Iterator, Sequence
from html import escape
from importlib.resources import files
from typing import Final

from rich.text import Text

from ... import __version__
from ...gpu.picture import Cell, GpuPicture, NodePicture
from ...kube.resource import ALL, DeviceRequirements
from ...process.streams import printable
from ...process.words import counted, listed
from ..explain import RequestReport, constraint_text
from ..verdict import Refused
from ..workload import Demand
from .model import Report, ReportAnswer, joined
from .tables import devices_table, leftover_table, seen_by, stopped_by
from .terminal import PlainTable

_VOID: Final = {"meta", "link"}

_POLICY: Final = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"
"""Nothing may be loaded and no script may run, in case that a name ever gets past the escaping."""


class Html(str):
    """Markup. A plain str is text."""

    __slots__ = ()


def tag(name: str, /, *children: str, **attributes: str | bool) -> Html:
    """An element. Text among `children` is escaped, Html is not.

    In the names of attributes, a trailing underscore is removed, and other underscores become hyphens. True gives an
    attribute without a value. False and the empty string give no attribute.
    """
    given = "".join(_attribute(key.rstrip("_").replace("_", "-"), value) for key, value in attributes.items() if value)
    return Html(f"<{name}{given}>" if name in _VOID else f"<{name}{given}>{join(*children)}</{name}>")


def join(*children: str) -> Html:
    """Elements and text one after the other."""
    return Html("".join(child if isinstance(child, Html) else escape(printable(child)) for child in children))


def _attribute(name: str, value: str | bool) -> str:
    return f" {name}" if value is True else f' {name}="{escape(str(value))}"'


def figure(picture: NodePicture, *, closest: bool, running: bool = False) -> Html:
    """The picture with its caption and key. `closest`: the demand does not fit there, but comes closest. `running`: the
    demand is a pod that has its devices.
    """
    model = f" ({picture.model})" if picture.model else ""
    caption = f"GPUs of {picture.node}{', which comes closest' if closest else ''}{model}"
    kind = "gpus divided" if picture.divided else "gpus"
    rows = tag("ul", *(_row(gpu, "" if model else gpu.model) for gpu in picture.rows), class_=kind)
    # An area that scrolls has to be reachable by keyboard.
    return tag(
        "figure",
        tag("figcaption", caption),
        tag("div", rows, class_="scroll", role="region", aria_label=caption, tabindex="0"),
        _key(picture, running=running),
    )


def _row(gpu: GpuPicture, model: str) -> Html:
    name = tag("span", tag("b", gpu.name), tag("small", model) if model else "", class_="gpu")
    columns = f"grid-template-columns:repeat({max(1, gpu.slices)},minmax(0,1fr))"
    return tag(
        "li", name, tag("span", *(box for cell in gpu.cells for box in _boxes(cell)), class_="slices", style=columns)
    )


def _boxes(cell: Cell) -> Iterator[Html]:
    """One box for the devices that draw on the slices, or one for each free slice."""
    boxes, slices = (1, cell.count) if cell.devices else (cell.count, 1)
    lines = [tag("b", cell.label)] if cell.label else []
    lines += [tag("span", name) for name in (*cell.proposed_for, *cell.held_by_others) or ("free",)]
    style = f"grid-column:span {slices}" if slices > 1 else ""
    yield from [tag("span", *lines, class_=f"box {cell.state}", style=style)] * boxes


def _key(picture: NodePicture, *, running: bool) -> Html:
    states = {cell.state for gpu in picture.gpus for cell in gpu.cells}
    own = "this pod has it" if running else "this demand gets it"
    entries = {"proposed": own, "held": "a claim holds it", "free": "free"}
    shown = [tag("li", tag("i", class_=f"box {state}"), text) for state, text in entries.items() if state in states]
    return tag("ul", *shown, class_="key")


def html_page(title: str, header: Html, main: Html) -> str:
    """A page with a heading, without a newline at the end. `header` follows the heading."""
    style = files(__package__).joinpath("page.css").read_text(encoding="utf-8")
    head = tag(
        "head",
        tag("meta", charset="utf-8"),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("meta", http_equiv="Content-Security-Policy", content=_POLICY),
        tag("meta", name="color-scheme", content="light dark"),
        tag("link", rel="icon", href="data:,"),
        tag("title", f"dra-dryrun: {title}"),
        tag("style", Html(style)),
    )
    body = tag(
        "body",
        tag("header", tag("h1", title), header),
        tag("main", main),
        tag("footer", tag("p", f"dra-dryrun {__version__}")),
    )
    return f"<!doctype html>\n{tag('html', head, body, lang='en')}"


def to_html(report: Report) -> str:
    """The page of a report."""
    answers = list(joined(report.answers))
    left = [html_table("Devices that are left", leftover_table(report.leftover))] if report.leftover else []
    main = join(*(_answer(answer, number) for number, answer in enumerate(answers, 1)), *_queues(report), *left)
    return html_page(_title(report), join(_inputs(report), _contents(answers)), main)


def _queues(report: Report) -> Iterator[Html]:
    """What Kueue says about workloads."""
    for queue in report.queues:
        lines = [*queue.lines, f"stopped by: {stopped_by(queue, report)}"]
        heading = tag("h2", f"Kueue: {queue.headline}, {queue.workload} in queue {queue.queue}")
        yield tag("section", heading, *(tag("p", line, class_="note") for line in lines))


def _title(report: Report) -> str:
    total = len(report.answers)
    fitting = sum(answer.verdict.fits for answer in report.answers)
    if total == 1:
        return f"{report.answers[0].verdict.demand.name} {_outcome(report.answers[0])}"
    return f"All {total} demands fit" if fitting == total else f"{fitting} of {total} demands fit"


def _outcome(answer: ReportAnswer) -> str:
    if answer.verdict.rejects:
        return "is not admitted"
    if answer.verdict.problems:
        return "would not start"
    if answer.verdict.state:
        return f"is {answer.verdict.state}" if answer.verdict.state == "running" else "has ended"
    return "fits nowhere" if answer.verdict.node is None else "fits"


def _inputs(report: Report) -> Html:
    rows = {
        "Devices": f"{report.devices} of {counted(report.nodes, 'node')}, in {counted(report.slices, 'ResourceSlice')}",
        "Devices from": report.where,
        **report.asked,
        "Held by": counted(report.claims, "claim"),
        "Rules of": f"Kubernetes {report.release}",
        "Simulating": "; ".join(report.assumptions),
        "Note": "; ".join(report.notes),
        "Not known": "; ".join(map(str, report.unknown)),
        "Error": "; ".join(map(str, report.errors)),
    }
    return tag("dl", *(tag("div", tag("dt", key), tag("dd", value)) for key, value in rows.items() if value))


def _contents(answers: Sequence[ReportAnswer]) -> Html:
    if len(answers) == 1:
        return Html()
    links = (
        tag("li", _badge(answer), " ", tag("a", answer.verdict.demand.name, href=f"#demand-{number}"))
        for number, answer in enumerate(answers, 1)
    )
    return tag("nav", tag("ol", *links), aria_label="Demands")


def _badge(answer: ReportAnswer) -> Html:
    return tag("span", _outcome(answer), class_="badge yes" if answer.verdict.fits else "badge no")


def _answer(answer: ReportAnswer, number: int) -> Html:
    verdict = answer.verdict
    parts = [tag("h2", _badge(answer), " ", verdict.demand.name, id_=f"heading-{number}")]
    unknown = (f"not known: {text}" for text in verdict.unknown)
    assumed = (f"assuming {text}" for text in verdict.assumptions)
    texts = (*verdict.rejects, *verdict.problems, *unknown, *assumed, *verdict.notes)
    parts += [tag("p", text, class_="note") for text in texts]
    parts += [tag("p", verdict.summary)] if verdict.summary else []
    parts += _asked(verdict.demand)
    parts += _fitting(answer) if verdict.node is not None else []
    if verdict.defect is not None:
        parts.append(tag("p", verdict.defect.text, class_="note"))
    if answer.picture is not None:
        parts.append(figure(answer.picture, closest=verdict.node is None, running=bool(verdict.state)))
    parts += _refusing(answer) if verdict.node is None else []
    return tag("section", *parts, id_=f"demand-{number}", aria_labelledby=f"heading-{number}")


def _fitting(answer: ReportAnswer) -> Iterator[Html]:
    node, *others = answer.verdict.fitting
    yield tag(
        "p",
        "On node ",
        tag("strong", node),
        "" if others else "." if answer.verdict.state else ", and on no other node.",
    )
    if others:
        names = tag("ul", *(tag("li", name) for name in others), class_="names")
        yield _folded(f"and on {counted(len(others), 'other node')}", names)
    if answer.items:
        caption = "Devices that it has" if answer.verdict.state else "Devices that it gets"
        yield html_table(caption, devices_table(answer.items, wide=True), "names-only")


def _asked(demand: Demand) -> Iterator[Html]:
    table = PlainTable("Claim", "Request", "DeviceClass", "Devices", "Selectors")
    constraints: list[Html] = []
    for claim in demand.claims:
        for name, required in claim.spec.requirements:
            selectors = " && ".join(required.selectors)
            table.add_row(str(claim.metadata), name, required.device_class_name, _amount(required), selectors)
        for index, constraint in enumerate(claim.spec.constraints):
            requests = ", ".join(constraint.requests) or "all requests"
            constraints.append(tag("li", f"{claim.metadata}: {constraint_text(claim, index)} ({requests})"))
    for request in demand.extended:
        table.add_row("", "", request.resource, request.count, "")
    if table.rows:
        asked = html_table("What it asks for", table)
        yield _folded("What it asks for", asked, tag("ul", *constraints) if constraints else Html())


def _amount(required: DeviceRequirements) -> str:
    return "all" if required.allocation_mode == ALL else str(required.count)


def _refusing(answer: ReportAnswer) -> Iterator[Html]:
    verdict = answer.verdict
    if verdict.changes:
        changes = (tag("li", change.text, tag("small", f" then on {change.node}")) for change in verdict.changes)
        yield tag("h3", "It would fit after one of these changes")
        yield tag("ul", *changes, class_="changes")
    if verdict.removal is not None:
        gone = ", ".join(verdict.removal.pods)
        yield tag("p", f"To make room, the scheduler would remove from {verdict.removal.node}: {gone}")
    if verdict.event:
        yield tag("p", "The scheduler says: ", tag("em", verdict.event))
    if verdict.refused:
        yield tag("h3", "Why it fits nowhere")
    for index, refused in enumerate(verdict.refused):
        who = "every node" if refused.explanation.fatal else listed(refused.nodes)
        yield _folded(_summary(refused, who), *_explanation(refused), unfolded=index == 0)


def _summary(refused: Refused, who: str) -> str:
    lacking = [request for request in refused.explanation.requests if request.missing]
    if not lacking:
        return who
    return f"{who}: " + ", ".join(
        f"{request.request} lacks {request.missing} of {request.wanted}" for request in lacking
    )


def _explanation(refused: Refused) -> Iterator[Html]:
    explanation = refused.explanation
    if explanation.error:
        yield tag("p", explanation.error)
    if explanation.pools:
        yield tag("ul", *(tag("li", pool) for pool in explanation.pools))
    yield from map(_request, explanation.requests)
    if len(refused.nodes) > 1 and not explanation.fatal:
        names = tag("ul", *(tag("li", name) for name in refused.nodes), class_="names")
        yield _folded(f"all {len(refused.nodes)} nodes", names)


def _request(request: RequestReport) -> Html:
    caption = f"Request {request.text}"
    if not request.removals:
        return tag("p", caption)
    table = PlainTable("Devices", "Reason", "Found")
    for removal in request.removals:
        table.add_row(removal.devices, removal.text, seen_by(removal, len(removal.saw)))
    return html_table(caption, table)


def html_table(caption: str, content: PlainTable, kind: str = "") -> Html:
    """A table that scrolls by itself if it is wider than the window. `kind` is its CSS class."""
    head = tag("thead", tag("tr", *(tag("th", heading, scope="col") for heading in content.headings)))
    body = tag("tbody", *(tag("tr", *map(_cell, content.headings, row)) for row in content.rows))
    table = tag("table", tag("caption", caption), head, body, class_=kind)
    return tag("div", table, class_="scroll", role="region", aria_label=caption, tabindex="0")


def _cell(heading: str, content: Text) -> Html:
    """A cell. On a narrow screen it stands below the others of its row, with its heading. A blank one is left out."""
    return tag("td", content.plain, data_heading=heading, class_="" if content.plain.strip() else "blank")


def _folded(summary: str, *content: Html, unfolded: bool = False) -> Html:
    return tag("details", tag("summary", summary), join(*content), open_=unfolded)

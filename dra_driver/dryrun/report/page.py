# SPDX-License-Identifier: Apache-2.0
"""A report as one page to keep, send or attach to a build: no network, no scripts, light and dark, wide and narrow."""

from collections.abc import Iterator, Sequence
from importlib.resources import files
from typing import Final

from ... import __version__
from ...resource import ALL, DeviceRequirements
from ..explain import RequestReport, constraint_text
from ..verdict import Refused
from ..workload import Demand
from .console import counted, listed
from .devices import attribute, memory
from .gpus import figure
from .html import Html, join, tag
from .model import Answer, Inputs, Item, Report
from .tables import seen_by

_POLICY: Final = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"
"""Nothing may be loaded and no script may run, should a name ever get past the escaping."""


def to_html(report: Report) -> str:
    """The page, without a newline at the end."""
    title = _title(report)
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
        tag("header", tag("h1", title), _inputs(report.inputs), _contents(report.answers)),
        tag("main", *(_answer(answer, number) for number, answer in enumerate(report.answers, 1))),
        tag("footer", tag("p", f"dra-dryrun {__version__}")),
    )
    return f"<!doctype html>\n{tag('html', head, body, lang='en')}"


def _title(report: Report) -> str:
    total = len(report.answers)
    fitting = sum(answer.verdict.node is not None for answer in report.answers)
    if total == 1:
        return f"{report.answers[0].verdict.demand.name} {_outcome(report.answers[0])}"
    return f"All {total} demands fit" if fitting == total else f"{fitting} of {total} demands fit"


def _outcome(answer: Answer) -> str:
    if answer.verdict.rejects:
        return "is not admitted"
    return "fits nowhere" if answer.verdict.node is None else "fits"


def _inputs(inputs: Inputs) -> Html:
    rows = {
        "Devices": f"{inputs.devices} of {counted(inputs.nodes, 'node')}, in {counted(inputs.slices, 'ResourceSlice')}",
        "From": inputs.where,
        "Held by": counted(inputs.claims, "claim"),
        "Rules of": f"Kubernetes {inputs.release}",
        "Assuming": "; ".join(inputs.assumptions),
        "Note": "; ".join(inputs.notes),
    }
    return tag("dl", *(tag("div", tag("dt", key), tag("dd", value)) for key, value in rows.items() if value))


def _contents(answers: Sequence[Answer]) -> Html:
    if len(answers) == 1:
        return Html()
    links = (
        tag("li", _badge(answer), " ", tag("a", answer.verdict.demand.name, href=f"#demand-{number}"))
        for number, answer in enumerate(answers, 1)
    )
    return tag("nav", tag("ol", *links), aria_label="Demands")


def _badge(answer: Answer) -> Html:
    return tag("span", _outcome(answer), class_="badge no" if answer.verdict.node is None else "badge yes")


def _answer(answer: Answer, number: int) -> Html:
    verdict = answer.verdict
    parts = [tag("h2", _badge(answer), " ", verdict.demand.name, id_=f"heading-{number}")]
    parts += [tag("p", text, class_="note") for text in (*verdict.rejects, *verdict.notes)]
    parts += [tag("p", verdict.summary)] if verdict.summary else []
    parts += _asked(verdict.demand)
    parts += _fitting(answer) if verdict.node is not None else []
    if verdict.defect is not None:
        parts.append(tag("p", verdict.defect.text, class_="note"))
    if answer.picture is not None:
        parts.append(figure(answer.picture, closest=verdict.node is None))
    parts += _refusing(answer) if verdict.node is None else []
    return tag("section", *parts, id_=f"demand-{number}", aria_labelledby=f"heading-{number}")


def _fitting(answer: Answer) -> Iterator[Html]:
    node, *others = answer.verdict.fitting
    yield tag("p", "On node ", tag("strong", node), "" if others else ", and on no other node.")
    if others:
        names = tag("ul", *(tag("li", name) for name in others), class_="names")
        yield _folded(f"and on {counted(len(others), 'other node')}", names)
    if answer.items:
        headings = ("Claim", "Request", "Device", "Profile", "Memory", "Model", "GPU")
        yield _table("Devices that it gets", headings, [_device(item) for item in answer.items], "names-only")


def _asked(demand: Demand) -> Iterator[Html]:
    headings = ("Claim", "Request", "DeviceClass", "Devices", "Selectors")
    rows = [
        [str(claim.metadata), name, one.device_class_name, _amount(one), " && ".join(one.selectors)]
        for claim in demand.claims
        for name, one in claim.spec.requirements
    ]
    rows += [["-", "-", one.resource, str(one.count), ""] for one in demand.extended]
    constraints = [
        tag("li", f"{claim.metadata}: {constraint_text(claim, index)} ({', '.join(one.requests) or 'all requests'})")
        for claim in demand.claims
        for index, one in enumerate(claim.spec.constraints)
    ]
    if rows:
        table = _table("What it asks for", headings, rows)
        yield _folded("What it asks for", table, tag("ul", *constraints) if constraints else Html())


def _amount(required: DeviceRequirements) -> str:
    return "all" if required.allocation_mode == ALL else str(required.count)


def _device(item: Item) -> list[str]:
    placed, device = item.placed, item.placed.device
    cells = [placed.claim, placed.request, placed.name, attribute(device, "profile"), memory(device)]
    return [*cells, attribute(device, "productName"), attribute(device, "parentUUID") or attribute(device, "uuid")]


def _refusing(answer: Answer) -> Iterator[Html]:
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
    lacking = [one for one in refused.explanation.requests if one.missing]
    if not lacking:
        return who
    return f"{who}: " + ", ".join(f"{one.request} lacks {one.missing} of {one.wanted}" for one in lacking)


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
    qualify = f"{request.left} of {counted(request.considered, 'device')} qualify"
    caption = f"Request {request.request} wants {request.wanted}, {qualify}"
    if not request.removals:
        return tag("p", caption)
    rows = [[str(one.devices), one.text, seen_by(one, len(one.saw))] for one in request.removals]
    return _table(caption, ("Devices", "Ruled out by", "What was seen"), rows)


def _table(caption: str, headings: Sequence[str], rows: Sequence[Sequence[str]], kind: str = "") -> Html:
    """A table that scrolls by itself where it is wider than the screen."""
    head = tag("thead", tag("tr", *(tag("th", heading, scope="col") for heading in headings)))
    body = tag("tbody", *(tag("tr", *(tag("td", cell or "-") for cell in row)) for row in rows))
    table = tag("table", tag("caption", caption), head, body, class_=kind)
    return tag("div", table, class_="scroll", role="region", aria_label=caption, tabindex="0")


def _folded(summary: str, *content: Html, unfolded: bool = False) -> Html:
    return tag("details", tag("summary", summary), join(*content), open_=unfolded)

# SPDX-License-Identifier: Apache-2.0
"""Alerts and the dashboard read metrics and labels that are in the processes' own registries, and link to sections."""

import functools
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

import promql_parser
import pytest
from promql_parser import AggModifierType, AggregateExpr, BinaryExpr, Call, Expr, MatchOp, ParenExpr, VectorSelector

from kubeletplugin.features.mps.metrics import MPS_STATES
from tests.docs.metrics import of_cluster_controller, of_controller, of_kubeletplugin
from tests.docs.test_contributing import anchor

from .rendering import JSON, VALUES, find, render

DOCS = Path(__file__).parents[2] / "docs"
ALERTS, DASHBOARD = {"prometheusRule": {"create": "always"}}, {"grafanaDashboard": {"enabled": True}}
KIND = "monitoring.coreos.com/v1/PrometheusRule"
TARGET = frozenset({"namespace", "pod", "container"})
"""Labels that Prometheus adds. A metric's own label of such a name gets another name, so nothing may use it."""


@functools.cache
def exported() -> Mapping[str, frozenset[str]]:
    """Name of a series -> its labels."""
    found: dict[str, frozenset[str]] = {}
    for table in (of_kubeletplugin, of_controller, of_cluster_controller):
        for name, kind, labels, _ in list(table())[1:]:
            series, own = name.strip("`"), frozenset(filter(None, labels.split(", "))) - TARGET
            if kind == "histogram":
                found |= {f"{series}_bucket": own | {"le"}, f"{series}_sum": own, f"{series}_count": own}
            else:
                found[series] = found.get(series, own) & own
    return found


def rules(values: JSON = ALERTS) -> list[JSON]:
    """The rendered alerts."""
    (group,) = find(render(values), "PrometheusRule")["spec"]["groups"]
    found: list[JSON] = group["rules"]
    return found


def dashboard() -> JSON:
    """The rendered dashboard."""
    (text,) = find(render(DASHBOARD), "ConfigMap", "dashboard")["data"].values()
    found: JSON = json.loads(text)
    return found


def panels() -> list[JSON]:
    """The dashboard's panels that are no headings."""
    return [one for one in dashboard()["panels"] if one["type"] != "row"]


def parsed(text: str) -> Expr:
    """An expression, with a value for Grafana's variable."""
    return promql_parser.parse(text.replace("$__rate_interval", "5m"))


def selectors(expression: Expr) -> Iterator[VectorSelector]:
    """What an expression reads."""
    found: list[VectorSelector] = []

    def visit(node: Expr) -> None:
        selector = getattr(node, "selector", node)
        if isinstance(selector, VectorSelector):
            found.append(selector)

    promql_parser.walk(expression, visit)
    return iter(found)


def result_labels(expression: Expr) -> frozenset[str]:
    """The labels of the result, for the forms of expressions that are used."""
    match expression:
        case AggregateExpr():
            modifier = expression.modifier
            assert modifier is None or modifier.type == AggModifierType.By
            inner = result_labels(expression.expr)
            labels = frozenset(modifier.labels if modifier else ())
            assert labels <= inner, f"{expression} groups by {labels - inner}"
            return labels
        case BinaryExpr():
            return result_labels(expression.lhs)
        case ParenExpr():
            return result_labels(expression.expr)
        case Call() if expression.func.name == "histogram_quantile":
            labels = result_labels(expression.args[-1])
            assert "le" in labels
            return labels - {"le"}
        case Call():
            return result_labels(expression.args[0])
    (selector,) = selectors(expression)
    return exported()[str(selector.name)] | TARGET


def queries() -> Iterator[tuple[str, str]]:
    """The names and texts of the queries of all alerts and panels."""
    yield from ((one["alert"], one["expr"]) for one in rules())
    yield from ((one["title"], target["expr"]) for one in panels() for target in one["targets"])


def require_exported(name: str, text: str) -> None:
    """The query of this name reads series, with labels that they have."""
    read = list(selectors(parsed(text)))
    assert read, name
    for selector in read:
        assert selector.name is not None, name
        assert selector.name in exported(), name
        for matcher in selector.matchers.matchers:
            assert matcher.name in exported()[selector.name] | TARGET, name
            assert matcher.name != "state" or matcher.value in MPS_STATES, name
            assert (matcher.value == "$node") == (matcher.op == MatchOp.Re), name
    assert result_labels(parsed(text)) is not None, name


def test_queries_read_metrics_and_labels_that_are_exported() -> None:
    for name, text in queries():
        require_exported(name, text)


@pytest.mark.parametrize(
    "text",
    [
        "nvidia_dra_registered == ",
        "increase(nvidia_dra_registered) > 0",
        "nvidia_dra_no_such_metric > 0",
        'nvidia_dra_registered{node="a"} == 0',
        "sum by (node) (nvidia_dra_registered) == 0",
        "histogram_quantile(0.9, sum by (operation) (rate(nvidia_dra_request_duration_seconds_bucket[5m])))",
    ],
)
def test_a_mistake_in_a_query_would_be_seen(text: str) -> None:
    with pytest.raises((AssertionError, KeyError, ValueError)):
        require_exported("", text)


def named(texts: Iterable[str], pattern: str) -> set[str]:
    """The labels that texts mention."""
    return {name for text in texts for name in re.findall(pattern, text)}


def test_texts_mention_labels_that_the_result_has() -> None:
    for alert in rules():
        used = named(alert["annotations"].values(), r"\$labels\.(\w+)")
        assert used <= result_labels(parsed(alert["expr"])), alert["alert"]
    for panel in panels():
        for target in panel["targets"]:
            used = named([target["legendFormat"]], r"{{(\w+)}}")
            assert used <= result_labels(parsed(target["expr"])), panel["title"]


def test_every_alert_links_to_a_section_about_what_to_do() -> None:
    for base, values in (("docs", ALERTS), ("https://git.example.com/dra-driver-gpu/docs", VALUES["everything"])):
        for alert in rules(values):
            page, _, section = alert["annotations"]["runbook_url"].removeprefix(f"{base}/").partition("#")
            assert page.startswith("how-to/troubleshooting/")
            headings = re.findall(r"^#+ (.+)$", (DOCS / page).read_text(encoding="utf-8"), re.MULTILINE)
            assert section in ("", *map(anchor, headings)), alert["alert"]
    names = [one["alert"] for one in rules()]
    assert len(set(names)) == len(names)


def test_the_dashboard_has_its_sections_and_no_panel_covers_another() -> None:
    found = dashboard()
    assert [one["title"] for one in found["panels"] if one["type"] == "row"] == [
        "Inventory",
        "Allocation",
        "Health",
        "Latency",
    ]
    assert len({one["id"] for one in found["panels"]}) == len(found["panels"])
    cells = [
        (x, y)
        for one in found["panels"]
        for place in [one["gridPos"]]
        for x in range(place["x"], place["x"] + place["w"])
        for y in range(place["y"], place["y"] + place["h"])
    ]
    assert len(set(cells)) == len(cells)
    assert {x for x, _ in cells} == set(range(24))
    variables = {one["name"]: one["query"] for one in found["templating"]["list"]}
    metric, label = re.fullmatch(r"label_values\((\w+), (\w+)\)", variables["node"]).groups()  # type: ignore[union-attr]
    assert label in exported()[metric]
    assert {one["datasource"]["uid"] for one in panels()} == {"${datasource}"}
    assert "datasource" in variables


@pytest.mark.parametrize(
    ("values", "apis", "expected"),
    [
        ({}, (KIND,), set()),
        ({"prometheusRule": {"create": "auto"}}, (), set()),
        ({"prometheusRule": {"create": "auto"}}, (KIND,), {"PrometheusRule"}),
        (ALERTS, (), {"PrometheusRule"}),
        (DASHBOARD, (), {"ConfigMap"}),
    ],
)
def test_alerts_and_dashboard_are_created_on_demand(values: JSON, apis: tuple[str, ...], expected: set[str]) -> None:
    names = ("-alerts", "-dashboard")
    assert {one["kind"] for one in render(values, apis=apis) if one["metadata"]["name"].endswith(names)} == expected


def test_the_sidecar_of_grafana_finds_the_dashboard() -> None:
    """By the label of the charts grafana and kube-prometheus-stack."""
    assert find(render(DASHBOARD), "ConfigMap", "dashboard")["metadata"]["labels"]["grafana_dashboard"] == "1"

# SPDX-License-Identifier: Apache-2.0
"""Node selectors, operator by operator."""

import pytest

from dra_driver.errors import NodeSelectorError
from dra_driver.kube.resource import Node, NodeSelector, NodeSelectorRequirement, NodeSelectorTerm, ObjectMeta
from dra_driver.scheduler.allocator.nodes import selector_matches

NODE = Node(ObjectMeta(name="node-a", labels={"zone": "east", "rank": "7", "empty": "", "word": "seven"}))


def label(key: str, operator: str, *values: str) -> NodeSelector:
    return NodeSelector((NodeSelectorTerm((NodeSelectorRequirement(key, operator, values),)),))


def name(operator: str, *values: str) -> NodeSelector:
    requirement = NodeSelectorRequirement("metadata.name", operator, values)
    return NodeSelector((NodeSelectorTerm(match_fields=(requirement,)),))


@pytest.mark.parametrize(
    ("selector", "matches"),
    [
        (label("zone", "In", "west", "east"), True),
        (label("zone", "In", "west"), False),
        (label("none", "In", "east"), False),
        (label("zone", "NotIn", "west"), True),
        (label("zone", "NotIn", "east"), False),
        (label("none", "NotIn", "east"), True),
        (label("empty", "Exists"), True),
        (label("none", "Exists"), False),
        (label("none", "DoesNotExist"), True),
        (label("zone", "DoesNotExist"), False),
        (label("rank", "Gt", "6"), True),
        (label("rank", "Gt", "7"), False),
        (label("rank", "Lt", "10"), True),
        (label("word", "Lt", "10"), False),
        (label("none", "Gt", "1"), False),
        (name("In", "node-a"), True),
        (name("In", "node-b"), False),
        (name("NotIn", "node-b"), True),
        (NodeSelector(), False),
        (NodeSelector((NodeSelectorTerm(),)), False),
        (NodeSelector((*label("zone", "In", "west").terms, *name("In", "node-a").terms)), True),
        (
            NodeSelector(
                (
                    NodeSelectorTerm(
                        label("zone", "Exists").terms[0].match_expressions, name("In", "x").terms[0].match_fields
                    ),
                )
            ),
            False,
        ),
    ],
)
def test_selector_matches_when_one_of_its_terms_does(selector: NodeSelector, matches: bool) -> None:
    assert selector_matches(selector, NODE) is matches


@pytest.mark.parametrize(
    ("selector", "said"),
    [
        (label("zone", "Near", "east"), "Near"),
        (label("zone", "In"), "needs values"),
        (label("zone", "Exists", "east"), "takes no values"),
        (label("rank", "Gt", "many"), "one integer"),
        (label("rank", "Lt", "1", "2"), "one integer"),
        (label("a b", "Exists"), "label key"),
        (label("-.example.com/zone", "Exists"), "label key"),
        (label("zone", "In", "no spaces"), "label value"),
        (name("Exists"), "Exists"),
        (name("In", "a", "b"), "one value"),
    ],
)
def test_selector_that_kubernetes_cannot_parse_is_an_error(selector: NodeSelector, said: str) -> None:
    with pytest.raises(NodeSelectorError, match=said):
        selector_matches(selector, NODE)

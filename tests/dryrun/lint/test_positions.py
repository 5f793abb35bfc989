# SPDX-License-Identifier: Apache-2.0
"""Findings point at the line and column that is wrong, however the file is written."""

import itertools
import json
import textwrap

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support import examples

from .support import claim, lint_text, request, stream


def places(text: str) -> list[tuple[int, int, str]]:
    return [(one.line, one.column, one.rule) for one in lint_text(text)]


CLAIM = """\
apiVersion: resource.k8s.io/v1
kind: ResourceClaim
metadata:
  name: {name}
spec:
  devices:
    requests:
    - name: gpu
      exactly:
        deviceClassName: gpu.nvidia.com
        {rest}
"""


def test_every_document_of_a_file_is_counted_from_its_top() -> None:
    text = "# first\n---\n" + CLAIM.format(name="a", rest="cuont: 1") + "---\n" + CLAIM.format(name="B", rest="")
    assert places(text) == [(13, 9, "unknown-field"), (18, 3, "invalid-name")]


def test_documents_before_a_broken_one_are_checked() -> None:
    text = CLAIM.format(name="a", rest="cuont: 1") + "---\nkind: [\n"
    assert places(text) == [(11, 9, "unknown-field"), (14, 1, "unreadable")]


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("a: b: c\n", 1),
        ("a: 1\nb: *nowhere\n", 2),
        ("a: 1\n\x07\n", 2),
        ("{{ template }}\n", 1),
        ("a:\n\t- b\n", 2),
    ],
)
def test_invalid_yaml_is_reported_with_its_line(text: str, line: int) -> None:
    (found,) = lint_text(text)
    assert (found.rule, found.line) == ("unreadable", line)
    assert "is not YAML: " in found.message


@pytest.mark.parametrize(
    "text",
    [
        "a: &a [*a]",
        "a: &a [1,1,1,1,1,1,1,1]\n"
        + "".join(f"{b}: &{b} [{','.join([f'*{a}'] * 10)}]\n" for a, b in itertools.pairwise("abcdefg")),
        "[" * 200 + "]" * 200,
        "[" * 20_000 + "]" * 20_000,
    ],
    ids=["contains itself", "aliases of aliases", "deep", "deeper"],
)
def test_recursive_and_deep_yaml_is_refused(text: str) -> None:
    assert [one.rule for one in lint_text(text)] == ["unreadable"]


def test_keys_are_text_whatever_they_look_like() -> None:
    found = lint_text(CLAIM.format(name="a", rest="capacity: {requests: {1: 1Gi, yes: 1Gi}}"))
    assert sorted(one.path.rpartition(".")[2] for one in found if one.rule == "invalid-name") == ["requests[1]"]


def test_items_of_a_list_have_their_own_lines() -> None:
    items = textwrap.indent(CLAIM.format(name="B", rest=""), "  ")
    text = f"apiVersion: v1\nkind: List\nitems:\n- {items.lstrip()}- 5\n"
    assert places(text) == [(7, 5, "invalid-name"), (15, 3, "not-an-object")]


def test_a_typed_list_passes_its_version_and_kind_on() -> None:
    whole = claim([request(cuont=1)])
    item = {"metadata": whole["metadata"], "spec": whole["spec"]}
    text = json.dumps({"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaimList", "items": [item]}, indent=1)
    ((line, _, rule),) = places(text)
    assert rule == "unknown-field"
    assert "cuont" in text.splitlines()[line - 1]


@pytest.mark.parametrize("indent", [None, 2, "\t"])
def test_json_is_pointed_into_too(indent: int | str | None) -> None:
    text = json.dumps(claim([request(cuont=1)]), indent=indent)
    ((line, column, _),) = places(text)
    assert text.splitlines()[line - 1][column - 1 :].startswith('"cuont"')


def test_a_missing_field_is_missing_where_it_would_be() -> None:
    text = CLAIM.format(name="a", rest="").replace("deviceClassName: gpu.nvidia.com", "count: 1")
    assert places(text) == [(9, 7, "schema")]


def test_merged_and_repeated_parts_are_pointed_at_where_they_are_written() -> None:
    text = """\
        apiVersion: resource.k8s.io/v1
        kind: ResourceClaim
        metadata: {name: a}
        spec:
          devices:
            requests:
            - name: one
              exactly: &wanted
                deviceClassName: gpu.nvidia.com
                count: -1
            - name: two
              exactly:
                <<: *wanted
                allocationMode: ExactCount
        """
    assert places(text) == [(10, 9, "invalid-count"), (10, 9, "invalid-count")]


EXPRESSION = "device.driver == 'gpu.nvidia.com' &&\ndevice.attributes['gpu.nvidia.com'].type = \"gpu\""
SINGLE = EXPRESSION.replace("\n", " ")


@pytest.mark.parametrize(
    "written",
    [
        SINGLE,
        "'" + SINGLE.replace("'", "''") + "'",
        json.dumps(SINGLE),
        "|\n" + textwrap.indent(EXPRESSION, " " * 14),
        ">-\n" + textwrap.indent(EXPRESSION, " " * 16),
        "|\n\n" + textwrap.indent(EXPRESSION, " " * 14),
        "\n" + textwrap.indent(EXPRESSION, " " * 14),
    ],
    ids=["plain", "single quotes", "double quotes", "literal", "folded", "blank line", "plain over lines"],
)
def test_a_place_in_an_expression_is_found_in_every_style(written: str) -> None:
    text = CLAIM.format(name="a", rest=f"selectors:\n        - cel:\n            expression: {written}")
    found = lint_text(text)
    assert found[0].rule == "selector-refused"
    rest = text.splitlines()[found[0].line - 1][found[0].column - 1 :]
    assert rest.startswith("= ")


@settings(max_examples=examples(100))
@given(before=st.text("ab \n'\"\\é%", max_size=30), indent=st.sampled_from([None, 1]))
def test_an_expression_in_json_is_pointed_into_whatever_stands_before(before: str, indent: int | None) -> None:
    expression = f"{json.dumps(before)} == @"
    one = claim([request(selectors=[{"cel": {"expression": expression}}])])
    text = json.dumps(one, ensure_ascii=False, indent=indent)
    found = next(one for one in lint_text(text) if one.rule == "selector-refused")
    assert text.splitlines()[found.line - 1][found.column - 1] == "@"


def test_findings_are_in_the_order_of_the_lines() -> None:
    text = stream(claim([request(count=-1)], name="B"), claim(name="C"), claim([request(cuont=1)]))
    found = lint_text(text)
    assert [one.line for one in found] == sorted(one.line for one in found)
    assert len(found) == 4

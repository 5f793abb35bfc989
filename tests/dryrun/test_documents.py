# SPDX-License-Identifier: Apache-2.0
"""YAML and JSON as people write it, right and wrong."""

import json
from pathlib import Path

import pytest

from dra_driver.dryrun.documents import parse, read_documents
from dra_driver.process.command import InputError

CLAIM = "{apiVersion: resource.k8s.io/v1, kind: ResourceClaim, metadata: {name: a}}"


@pytest.mark.parametrize(
    "text",
    [
        CLAIM,
        f"---\n{CLAIM}\n---\n",
        f"---\n---\n{CLAIM}",
        json.dumps({"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim", "metadata": {"name": "a"}}),
        "{apiVersion: v1, kind: List, items: [" + CLAIM + "]}",
        "{apiVersion: resource.k8s.io/v1, kind: ResourceClaimList, items: [{metadata: {name: a}}]}",
    ],
    ids=["yaml", "separators", "empty documents", "json", "List", "typed list"],
)
def test_claim_is_found_in_every_form_of_a_file(text: str) -> None:
    (document,) = parse(text, "file")
    assert (document.kind, document.name) == ("ResourceClaim", "a")


def test_the_place_in_a_stream_is_named() -> None:
    assert [one.source for one in parse(f"{CLAIM}\n---\n{CLAIM}", "a.yaml")] == ["a.yaml", "a.yaml, document 2"]


def test_a_folder_stands_for_its_files_in_order(tmp_path: Path) -> None:
    for name in ("b.yaml", "a.json", "c.yml", "notes.txt"):
        (tmp_path / name).write_text(CLAIM, encoding="utf-8")
    sources = [Path(one.source).name for one in read_documents([str(tmp_path)])]
    assert sources == ["a.json", "b.yaml", "c.yml"]


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("a: [", "while parsing"),
        ("a: 1\na: 2", "key 'a' is there twice"),
        ("{apiVersion: v1, kind: Pod, spec: {x: 1, x: 2}}", "key 'x' is there twice"),
        ("- 1", "a Kubernetes object is a mapping"),
        ("just text", "a Kubernetes object is a mapping"),
        ('{"apiVersion": "v1", "kind": "Pod", "kind": "Pod"}', "key 'kind' is there twice"),
        ("{kind: Pod}", "lacks apiVersion or kind"),
        ("{apiVersion: v1, kind: 3}", "lacks apiVersion or kind"),
        ("a: !!python/object/apply:os.system [ls]", "has no meaning in Kubernetes"),
        ("\x00", "control characters are not allowed"),
    ],
)
def test_broken_input_is_refused_with_its_place(text: str, complaint: str) -> None:
    with pytest.raises(InputError, match=complaint) as refused:
        parse(text, "claim.yaml")
    assert str(refused.value).startswith("claim.yaml")
    assert "\n" not in str(refused.value)


def test_timestamps_in_yaml_stay_text() -> None:
    (document,) = parse("{apiVersion: v1, kind: Pod, metadata: {creationTimestamp: 2026-01-02T03:04:05Z}}", "file")
    assert document.value["metadata"]["creationTimestamp"] == "2026-01-02T03:04:05Z"


def test_a_missing_file_and_an_empty_folder_are_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="No such file"):
        read_documents([str(tmp_path / "missing.yaml")])
    with pytest.raises(InputError, match=r"no \.yaml, \.yml or \.json file"):
        read_documents([str(tmp_path)])

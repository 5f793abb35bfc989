# SPDX-License-Identifier: Apache-2.0
"""Exit statuses, and the document that each of them has with -o json."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from dra_driver.dryrun.answer import Question, answered
from dra_driver.dryrun.report import to_document
from dra_driver.dryrun.sources import Source
from dra_driver.dryrun.status import ExitStatus, Note
from dra_driver.scheduler.allocator import Features

from .conftest import DryRun, Write, gpu, slice_of
from .reports import claim as whole_gpu
from .reports import report
from .test_command import claim
from .test_report_document import check

NOTE = Note("RayCluster team-a/train", "its kind is not known", "ray.yaml", 3, 1)


@pytest.mark.parametrize(
    ("facts", "status"),
    [
        ({"fits": True}, 0),
        ({"fits": True, "unknown": True}, 3),
        ({"fits": False, "unknown": True}, 1),
        ({"fits": True, "errors": True, "unknown": True}, 2),
        ({"fits": False, "errors": True}, 2),
    ],
)
def test_status_of_errors_and_of_what_does_not_fit_wins_over_unknown(facts: dict[str, bool], status: int) -> None:
    assert ExitStatus.of(**facts) == status


def test_note_is_printed_with_its_place_and_object() -> None:
    assert str(NOTE) == "ray.yaml:3:1: RayCluster team-a/train: its kind is not known"
    assert str(Note("", "no node is known")) == "no node is known"


def test_note_of_the_source_raises_the_status() -> None:
    source = Source((), "nowhere", unknown=(NOTE,))
    answer = answered(Question((), Features()), source)
    assert answer.status == ExitStatus.UNKNOWN
    assert answer.unknown == (NOTE,)


def test_unknown_fact_of_a_verdict_is_a_note_about_its_demand() -> None:
    (first,) = report(whole_gpu("whole", "true", device_class="gpu.nvidia.com")).answers
    verdict = replace(first.verdict, unknown=("its node is not known",))
    answer = answered(Question((), Features()), Source((), "nowhere"))
    answer = replace(answer, verdicts=[verdict])
    assert answer.unknown == (Note("ResourceClaim ns/whole", "its node is not known"),)


def test_notes_and_errors_of_a_report_follow_the_schema() -> None:
    document = to_document(replace(report(), unknown=(NOTE,), errors=(Note("", "cannot be read", "a.yaml"),)))
    check(document)
    assert document["notes"][0] == {
        "object": "RayCluster team-a/train",
        "text": "its kind is not known",
        "file": "ray.yaml",
        "line": 3,
        "column": 1,
    }
    assert document["errors"][0]["line"] is None


@pytest.mark.parametrize(
    "arguments",
    [
        ("fit", "missing.yaml"),
        ("missing.yaml",),
        ("fit", "--with-node", "h100x8=0", "missing.yaml"),
        ("--replicas", "many", "missing.yaml"),
        ("fit", "--no-such-flag", "missing.yaml"),
        ("lint", "--kubernetes-version", "0.1", "missing.yaml"),
        ("migrate", "missing.yaml"),
        ("capacity", "--slices", "missing.yaml"),
        ("gpus", "none"),
        ("cel", "true", "--slices", "missing.yaml"),
    ],
    ids=" ".join,
)
def test_error_is_a_document_too(arguments: tuple[str, ...], dryrun: DryRun) -> None:
    code, out, err = dryrun(*arguments, "-o", "json")
    document = json.loads(out)
    check(document)
    assert code == 2
    assert document["kind"] == "DryRunError"
    assert document["errors"][0]["text"].casefold().rstrip(".") in " ".join(err.split()).casefold()


def test_error_is_no_document_for_people(dryrun: DryRun) -> None:
    assert dryrun("missing.yaml")[:2] == (2, "")


def test_pending_pods_need_a_cluster(dryrun: DryRun) -> None:
    code, out, err = dryrun("--all-pending")
    assert (code, out) == (2, "")
    assert "--all-pending: no cluster is configured" in err


def test_report_without_pending_pods_has_no_demands(dryrun: DryRun, write: Write) -> None:
    slices = write("slices.json", {"apiVersion": "v1", "kind": "List", "items": [slice_of("a", gpu("gpu-0"))]})
    code, out, _ = dryrun("--slices", slices, "--all-pending", "-o", "json")
    document = json.loads(out)
    check(document)
    assert code == 0
    assert document["demands"] == []


@pytest.mark.parametrize(("count", "status"), [(1, 0), (3, 1)])
def test_document_has_the_status(count: int, status: int, dryrun: DryRun, write: Write) -> None:
    slices = write("slices.json", slice_of("node-a", gpu("gpu-0")))
    code, out, _ = dryrun("--slices", slices, write("claim.yaml", claim(count=count)), "-o", "json")
    document = json.loads(out)
    check(document)
    assert code == status
    assert document["fits"] == (status == 0)
    assert document["notes"] == document["errors"] == []


BAD_POD = "apiVersion: v1\nkind: Pod\nmetadata: {name: bad}\nspec: {containers: [{name: c, image: i, resource: {}}]}\n"
GOOD_POD = "apiVersion: v1\nkind: Pod\nmetadata: {name: good}\nspec: {containers: [{name: c, image: i}]}\n"
OTHER = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: twice}\n"


@pytest.mark.parametrize("text", ["a: [\n", "a: 1\na: 2\n", "- 1\n", "kind: Pod\n", BAD_POD], ids=repr)
@pytest.mark.parametrize("first", [True, False], ids=["first", "last"])
def test_bad_document_hides_nothing(text: str, first: bool, dryrun: DryRun, write: Write) -> None:
    parts = [text, GOOD_POD] if first else [GOOD_POD, text]
    path = write("pods.yaml", "---\n".join(parts))
    code, out, err = dryrun("--with-node", "h100x8", path, "-o", "json")
    document = json.loads(out)
    check(document)
    assert code == 2
    assert [one["name"] for one in document["demands"]] == ["Pod good"]
    assert len(document["errors"]) == 1
    assert document["errors"][0]["file"] == str(path)
    assert document["errors"][0]["line"] >= 1
    assert "pods.yaml:" in err


def test_bad_file_of_a_folder_hides_nothing(dryrun: DryRun, tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / "a.yaml").write_text("a: [", encoding="utf-8")
    (folder / "b.yaml").write_text(GOOD_POD, encoding="utf-8")
    code, out, err = dryrun("--with-node", "h100x8", folder)
    assert code == 2
    assert "fits  Pod good" in out
    assert "a.yaml:" in err


def test_objects_of_one_name_whose_kind_is_not_read_are_no_error(dryrun: DryRun, write: Write) -> None:
    path = write("pods.yaml", "---\n".join([OTHER, OTHER, GOOD_POD]))
    assert dryrun("--with-node", "h100x8", path)[0] == 0


def test_second_object_of_a_name_hides_nothing(dryrun: DryRun, write: Write) -> None:
    path = write("pods.yaml", "---\n".join([GOOD_POD, GOOD_POD]))
    code, out, err = dryrun("--with-node", "h100x8", path)
    assert code == 2
    assert "fits  Pod good" in out
    assert f"{path}:8:12: Pod good: metadata.name: there is another Pod of this name" in err


def test_missing_template_is_the_verdict_of_its_pod(dryrun: DryRun, write: Write) -> None:
    pod = GOOD_POD.replace("good", "asks").replace(
        "spec: {", "spec: {resourceClaims: [{name: g, resourceClaimName: non}], "
    )
    path = write("pods.yaml", "---\n".join([pod, GOOD_POD, claim().replace("wanted", "none")]))
    code, out, _ = dryrun("--with-node", "h100x8", path)
    assert code == 1
    assert "not admitted  Pod asks: there is no ResourceClaim default/non; similar: default/none" in out
    assert "fits  Pod good" in out


def test_workload_without_pods_requests_nothing(dryrun: DryRun, write: Write) -> None:
    value = {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "idle"}}
    template = {"spec": {"containers": [{"name": "c", "image": "i"}]}}
    path = write("idle.json", {**value, "spec": {"replicas": 0, "selector": {}, "template": template}})
    code, out, _ = dryrun("--with-node", "h100x8", path)
    assert code == 0
    assert "Deployment idle makes no pods: nothing is requested now" in out


def test_selector_that_fails_on_every_device_is_refused(dryrun: DryRun) -> None:
    code, out, _ = dryrun("cel", "device.attributes['gpu.nvidia.com'].none == 'x'", "--built-in")
    assert code == 1
    assert "it fails on every device" in out


def test_lint_tells_what_it_did_not_check(dryrun: DryRun, write: Write) -> None:
    path = write("other.yaml", "apiVersion: example.com/v1\nkind: Trainer\nmetadata: {name: t}\nspec: {gpus: 8}\n")
    code, out, _ = dryrun("lint", "--built-in", path, "-o", "json")
    assert code == 3
    assert json.loads(out)["notes"][0]["object"] == "Trainer t"

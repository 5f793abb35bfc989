# SPDX-License-Identifier: Apache-2.0
"""Whatever a file holds, a command that is given it ends with 2 and one line."""

import json
from pathlib import Path

import pytest

from dra_driver.dryrun.workload import MOST_DEMANDS
from tests.support.hostile import HOSTILE

from .conftest import DryRun, Write

CLAIM = {
    "apiVersion": "resource.k8s.io/v1",
    "kind": "ResourceClaim",
    "metadata": {"name": "a"},
    "spec": {"devices": {"requests": [{"name": "gpu", "exactly": {"deviceClassName": "gpu.nvidia.com"}}]}},
}
WAYS = {
    "fit": ["fit", "{bad}"],
    "fit --slices": ["fit", "{claim}", "--slices", "{bad}"],
    "fit --with-node": ["fit", "{claim}", "--with-node", "{bad}"],
    "fit --kubeconfig": ["fit", "{claim}", "--kubeconfig", "{bad}"],
    "capacity": ["capacity", "--slices", "{bad}"],
    "migrate": ["migrate", "{bad}"],
    "snapshot": ["snapshot", "--kubeconfig", "{bad}"],
}


@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
@pytest.mark.parametrize("content", HOSTILE.values(), ids=HOSTILE)
def test_a_hostile_file_costs_one_line_that_names_it(
    content: bytes, way: list[str], dryrun: DryRun, write: Write, tmp_path: Path
) -> None:
    bad = tmp_path / "bad.yaml"
    bad.write_bytes(content)
    code, out, err = dryrun(*(word.format(bad=bad, claim=write("claim.json", CLAIM)) for word in way))
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert f"{bad}:" in err
    assert "codec" not in err


@pytest.mark.parametrize("content", HOSTILE.values(), ids=HOSTILE)
def test_linting_a_hostile_file_gives_findings(content: bytes, dryrun: DryRun, tmp_path: Path) -> None:
    bad = tmp_path / "bad.yaml"
    bad.write_bytes(content)
    code, out, _ = dryrun("lint", bad)
    assert code in (0, 2)  # it looks for mistakes in objects, and passes over what other programs may have written
    assert all(line.startswith(f"{bad}:") for line in out.splitlines())


@pytest.mark.parametrize("metadata", ["hello", [1], 5, True, {"name": [1]}, {"name": "a", "namespace": {}}])
@pytest.mark.parametrize("kind", ["ResourceClaim", "Pod"])
def test_objects_without_a_proper_name_are_refused(metadata: object, kind: str, dryrun: DryRun, write: Write) -> None:
    spoilt = write("spoilt.json", {**CLAIM, "kind": kind, "metadata": metadata})
    for arguments in (["fit", spoilt], ["fit", write("claim.json", CLAIM), "--slices", spoilt]):
        code, _, err = dryrun(*arguments)
        assert code == 2
        assert "metadata" in err


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16"])
def test_fit_and_lint_read_the_encodings_that_kubectl_reads(encoding: str, dryrun: DryRun, tmp_path: Path) -> None:
    path = tmp_path / "claim.yaml"
    path.write_bytes(json.dumps(CLAIM).encode(encoding))
    assert dryrun("fit", path)[0] == 0
    assert dryrun("lint", path)[0] == 0


def test_a_link_that_leads_nowhere_is_not_passed_over(dryrun: DryRun, write: Write, tmp_path: Path) -> None:
    write("claim.json", CLAIM)
    (tmp_path / "gone.yaml").symlink_to(tmp_path / "nothing")
    (tmp_path / "folder.yaml").mkdir()
    for command in ("fit", "lint"):
        code, out, err = dryrun(command, tmp_path)
        assert code == 2
        assert "gone.yaml" in out + err
        assert "folder.yaml" not in out + err


def test_more_than_can_be_placed_one_by_one_is_refused_at_once(dryrun: DryRun, write: Write) -> None:
    many = [{**CLAIM, "metadata": {"name": f"c{number}"}} for number in range(MOST_DEMANDS + 1)]
    code, _, err = dryrun("fit", write("many.json", {"apiVersion": "v1", "kind": "List", "items": many}))
    assert code == 2
    assert f"more than {MOST_DEMANDS}" in err
    workload = {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "d"}}
    workload["spec"] = {"replicas": 2**31 - 1, "template": {"spec": {}}}
    code, _, err = dryrun("fit", write("deployment.json", workload))
    assert code == 2
    assert "spec.replicas: more than" in err


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["fit", "{claim}", "--in-cluster", "--built-in"], "--in-cluster and --built-in exclude each other"),
        (["fit", "{claim}", "--until-fits"], "--until-fits needs a cluster to watch"),
        (["fit", "{claim}", "--watch"], "--watch needs a cluster to watch"),
        (["fti", "{claim}"], "there is no command and no file 'fti': did you mean 'fit'?"),
        (["fit", "{claim}", "--slices", "{secret}"], "Secret a: objects of this kind decide nothing"),
        (["fit", "a" * 300], "File name too long"),
    ],
)
def test_a_wrong_command_line_says_what_was_given(
    arguments: list[str], complaint: str, dryrun: DryRun, write: Write
) -> None:
    given = {
        "claim": write("claim.json", CLAIM),
        "secret": write("secret.json", {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "a"}}),
    }
    code, _, err = dryrun(*(word.format(**given) for word in arguments))
    assert code == 2
    assert complaint in err
    assert err.count("\n") == 1

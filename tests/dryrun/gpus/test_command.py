# SPDX-License-Identifier: Apache-2.0
"""`dra-dryrun gpus` on a cluster of 20 nodes, and on a larger one where many nodes are to be summed up."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from dra_driver.dryrun.documents import list_of_lines
from tests.bench.cluster import objects
from tests.dryrun.conftest import DryRun, Write, gpu, slice_of

NODES = 60
"""Of the larger cluster, with node-47, which has an unhealthy GPU."""


@pytest.fixture(scope="session")
def snapshot(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("gpus") / "cluster.json"
    path.write_text(list_of_lines(objects(20, 100)))
    return path


@pytest.fixture(scope="session")
def large(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("gpus") / "large.json"
    path.write_text(list_of_lines(objects(NODES, 300)))
    return path


@pytest.fixture
def lines(dryrun: DryRun, snapshot: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The lines that the command prints on a terminal of some columns."""
    return printing(dryrun, snapshot, monkeypatch)


@pytest.fixture
def lines_of_large(dryrun: DryRun, large: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The lines that it prints of the larger cluster."""
    return printing(dryrun, large, monkeypatch)


def printing(dryrun: DryRun, snapshot: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    def run(*arguments: str, columns: int = 0) -> list[str]:
        if columns:
            monkeypatch.setenv("COLUMNS", str(columns))
        code, out, err = dryrun("gpus", *arguments, "--slices", snapshot)
        assert (code, err) == (0, "")
        return out.splitlines()

    return run


def documented(dryrun: DryRun, snapshot: Path, *arguments: str) -> Any:
    code, out, _ = dryrun("gpus", *arguments, "--slices", snapshot, "-o", "json")
    assert code == 0
    return json.loads(out)


def test_the_user_of_one_gpu_is_told(lines: Any, snapshot: Path) -> None:
    head, headings, node, device, *others = lines("node-1/5")
    assert head == f"1 GPU of 1 node: 0 free, 0 partly used, 1 used, from {snapshot}"
    assert headings.split() == ["GPU", "STATE", "POD", "OWNER", "SINCE", "DEVICE", "MEMORY", "CLAIM", "REQUEST"]
    assert node.split()[:5] == ["node-1", "1", "of", "8", "GPUs"]
    assert re.fullmatch(
        r" +gpu-5 +used +serving/chat-\S+ +Deployment chat +2026-11-01 00:25Z +whole +81559Mi +serving/chat-\S+ +gpu",
        device,
    )
    assert others == []


@pytest.mark.parametrize("name", ["5", "gpu-5"])
def test_a_gpu_is_found_by_number_and_name(name: str, dryrun: DryRun, snapshot: Path) -> None:
    (node,) = documented(dryrun, snapshot, f"node-1/{name}")["nodes"]
    assert [found["name"] for found in node["gpus"]] == ["gpu-5"]


def test_a_gpu_is_found_by_uuid(dryrun: DryRun, snapshot: Path) -> None:
    (node,) = documented(dryrun, snapshot, "node-1/5")["nodes"]
    uuid = node["gpus"][0]["uuid"]
    (same,) = documented(dryrun, snapshot, f"node-1/{uuid}")["nodes"]
    assert same["gpus"] == node["gpus"]


def test_gpus_of_one_claim_are_one_row(lines: Any) -> None:
    (row,) = [line for line in lines("node-2") if line.startswith("  gpu-")]
    assert row.split()[:6] == ["gpu-0", "to", "gpu-7", "used", "research/train-0-bf428", "Job"]


def test_mig_devices_stand_below_their_gpu_and_in_a_picture(lines: Any) -> None:
    found = lines("node-4/4", columns=120)
    assert [line.split()[0] for line in found if " at " in line] == ["1g.10gb", "1g.10gb", "2g.20gb", "3g.40gb"]
    (drawing,) = [line for line in found if "|" in line]
    assert re.fullmatch(r"  gpu-4  \|1g\.10gb a\|1g\.10gb b\| +2g\.20gb c +\| +3g\.40gb d +\|", drawing)
    assert "a students/notebook-0-1-gpus-" in "".join(found)


def test_a_large_cluster_is_numbers_and_equal_nodes_are_one(lines_of_large: Any) -> None:
    _, headings, *rows, hint = lines_of_large()
    assert headings.split() == ["NODE", "NODES", "GPUS", "FREE", "PARTLY", "USED", "USED", "UNHEALTHY", "MODEL"]
    assert len(rows) < 15
    assert rows[-1].split() == ["total", str(NODES), "408", *rows[-1].split()[3:]]
    assert hint == "`dra-dryrun gpus NODE` lists the users of its GPUs, and -o wide those of all nodes"


def test_a_wide_output_has_the_users_of_all_nodes(lines_of_large: Any) -> None:
    found = lines_of_large("-o", "wide")
    assert sum("Deployment chat" in line for line in found) > 90
    assert "UUID" in found[1]


def test_idle_nodes_are_one_also_in_a_tree(lines_of_large: Any) -> None:
    (line,) = [line for line in lines_of_large("--free", "whole", "-o", "wide") if " 8 of 8 free" in line]
    assert line.startswith("node-16 and ")


@pytest.mark.parametrize("columns", [40, 60, 80, 100, 120, 160])
def test_names_are_whole_at_every_width(columns: int, lines: Any) -> None:
    found = lines("node-4", columns=columns)
    names = re.compile(r"serving/search-[0-9a-f]{5}-[0-9a-f]{5}(?!\S)")
    assert sum(bool(names.search(line)) for line in found) >= 2
    assert [line.split()[0] for line in found if re.match(r"  gpu-\d +(used|free|partly)", line)] == [
        f"gpu-{number}" for number in range(8)
    ]


def test_columns_are_left_out_in_a_fixed_order(lines: Any) -> None:
    order = ["REQUEST", "CLAIM", "MEMORY", "DEVICE", "SINCE", "OWNER"]
    left_out = []
    for columns in range(200, 40, -5):  # a column that is left out gives more than 5, so no two are lost in a step
        shown = next(line for line in lines("node-1/5", columns=columns) if "STATE" in line).split()
        left_out += [name for name in order if name not in shown and name not in left_out]
    assert left_out == order


def test_the_numbers_are_summed_up_by_a_label(lines_of_large: Any) -> None:
    _, by, headings, *rows = lines_of_large("--by", "topology.kubernetes.io/zone")
    assert by == "by topology.kubernetes.io/zone:"
    assert headings.split()[:3] == ["VALUE", "NODES", "GPUS"]
    assert [row.split()[:2] for row in rows] == [["zone-a", "20"], ["zone-b", "20"], ["zone-c", "20"]]


def test_nodes_without_the_label_come_last(lines_of_large: Any) -> None:
    assert lines_of_large("--by", "example.com/none")[-1].split()[:2] == ["(none)", str(NODES)]


@pytest.mark.parametrize(
    ("arguments", "nodes"),
    [
        (["-l", "kubernetes.io/hostname=node-3"], ["node-3"]),
        (["-l", "kubernetes.io/hostname in (node-3,node-5)"], ["node-3", "node-5"]),
        (["--pod", "students/notebook-0-1"], ["node-4"]),
        (["--pod", "notebook-0-1", "-n", "students"], ["node-4"]),
        (["--pod", "notebook-0-1", "-n", "serving"], []),
    ],
)
def test_flags_select_nodes(arguments: list[str], nodes: list[str], dryrun: DryRun, snapshot: Path) -> None:
    assert [node["name"] for node in documented(dryrun, snapshot, *arguments)["nodes"]] == nodes


def test_nodes_with_an_unhealthy_gpu_are_selected(dryrun: DryRun, large: Path) -> None:
    assert [node["name"] for node in documented(dryrun, large, "--unhealthy")["nodes"]] == ["node-47"]


def test_a_pod_is_shown_without_the_other_users_of_its_gpu(dryrun: DryRun, snapshot: Path) -> None:
    (node,) = documented(dryrun, snapshot, "--pod", "students/notebook-0-1")["nodes"]
    (found,) = node["gpus"]
    assert [device["usedBy"][0]["pods"] for device in found["devices"]] == [["students/notebook-0-1"]]


def test_a_claim_is_found_by_name(dryrun: DryRun, snapshot: Path) -> None:
    (node,) = documented(dryrun, snapshot, "node-1/5")["nodes"]
    claim = node["gpus"][0]["devices"][0]["usedBy"][0]["claim"]
    (same,) = documented(dryrun, snapshot, "--claim", claim)["nodes"]
    assert (same["name"], [found["name"] for found in same["gpus"]]) == ("node-1", ["gpu-5"])


def test_gpus_with_a_free_profile_are_selected(dryrun: DryRun, snapshot: Path) -> None:
    nodes = documented(dryrun, snapshot, "--free", "1g.20gb")["nodes"]
    assert nodes
    assert {found["name"] for node in nodes for found in node["gpus"]} == {"gpu-7"}
    assert all("1g.20gb" in found["free"] for node in nodes for found in node["gpus"])


def test_an_unhealthy_gpu_is_told_with_its_taint_and_since_when(lines_of_large: Any) -> None:
    found = lines_of_large("--unhealthy")
    assert any("used, unhealthy" in line for line in found)
    assert any(re.match(r"node-47/gpu-7: health: gpu.nvidia.com/xid=48:NoSchedule since 2026-", line) for line in found)


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (["nod-1"], "cluster.json; did you mean 'node-1'?"),
        (["node-1/9"], "node node-1 has no GPU '9' (there are gpu-0, gpu-1, gpu-2 and 5 more)"),
        (["--free", "1g.20g"], "--free: no GPU offers '1g.20g'; did you mean '1g.20gb'?"),
        (["-l", "a=b=c"], "-l 'a=b=c': 'a=b=c' is none of KEY=VALUE, KEY!=VALUE,"),
        (["-w"], "--watch needs a cluster to watch"),
    ],
)
def test_wrong_arguments_are_told(arguments: list[str], error: str, dryrun: DryRun, snapshot: Path) -> None:
    code, _, err = dryrun("gpus", *arguments, "--slices", snapshot)
    assert code == 2
    assert error in err


@pytest.mark.parametrize("name", ["devices", "nodes"])
def test_the_old_names_tell_the_new_one(name: str, dryrun: DryRun) -> None:
    code, output, errors = dryrun(name)
    assert (code, output) == (2, "")
    assert errors.endswith(f": dra-dryrun {name} is now dra-dryrun gpus\n")


def test_node_of_a_snapshot_in_lines_equals_the_node_of_the_whole_cluster(
    dryrun: DryRun, snapshot: Path, tmp_path: Path
) -> None:
    whole = tmp_path / "cluster.json"
    whole.write_text(json.dumps(json.loads(snapshot.read_text())))
    nodes = {node["name"]: node for node in documented(dryrun, whole)["nodes"]}
    for name in ("node-1", "node-4", "node-9", "node-15", "node-20"):
        assert documented(dryrun, snapshot, name)["nodes"] == [nodes[name]]


def test_devices_of_all_nodes_stand_apart(dryrun: DryRun, write: Write) -> None:
    value = slice_of("node-1", {"name": "pool-0"})
    del value["spec"]["nodeName"]
    value["spec"] |= {"driver": "example.com", "allNodes": True}
    slices = write("slices.json", value)
    _, out, _ = dryrun("gpus", "--slices", slices)
    assert out.splitlines()[-1].split() == ["(several", "nodes)", "example.com", "1,", "none", "in", "use"]


def test_texts_of_the_cluster_are_escaped_in_the_page(dryrun: DryRun, write: Write) -> None:
    slices = write("slices.json", slice_of("node-1", gpu("gpu-0", "<b>H100</b>")))
    _, out, _ = dryrun("gpus", "--slices", slices, "-o", "html")
    assert "&lt;b&gt;H100&lt;/b&gt;" in out
    assert "<b>H100</b>" not in out
    assert "http" not in out.replace("http-equiv", "")

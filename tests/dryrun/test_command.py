# SPDX-License-Identifier: Apache-2.0
"""dra-dryrun from input to verdict: text and exit code."""

import json
import textwrap
from pathlib import Path

import click
import pytest

from dra_driver.dryrun.main import dryrun as dryrun_command
from dra_driver.kube.api import ApiClient
from dra_driver.kube.kinds import NODES
from dra_driver.sandbox.demo import examples_folder
from tests.support.apiserver import SLICES

from .conftest import DryRun, Write, gpu, slice_of

EXAMPLES = examples_folder()


def claim(expression: str = "true", count: int = 1) -> str:
    return textwrap.dedent(f"""
        apiVersion: resource.k8s.io/v1
        kind: ResourceClaim
        metadata: {{name: wanted}}
        spec:
          devices:
            requests:
            - name: gpu
              exactly:
                deviceClassName: gpu.nvidia.com
                count: {count}
                selectors:
                - cel:
                    expression: {json.dumps(expression)}
        """)


@pytest.mark.parametrize("example", ["whole-gpu", "shared-gpu", "mig-slices"])
def test_the_examples_fit_on_the_built_in_nodes(example: str, dryrun: DryRun) -> None:
    code, out, _ = dryrun(EXAMPLES / f"{example}.yaml")
    assert code == 0
    assert "fits nowhere" not in out


@pytest.mark.parametrize(
    ("example", "nodes"),
    [("compute-domain", 18), ("compute-domain-pods-per-gpu", 2), ("compute-domain-all-channels", 1)],
)
def test_the_examples_of_compute_domains_fit_on_a_rack(example: str, nodes: int, dryrun: DryRun) -> None:
    code, out, _ = dryrun("--with-node", f"gb200x4={nodes}", EXAMPLES / f"{example}.yaml")
    assert code == 0
    assert "fits nowhere" not in out
    assert dryrun("--with-node", "h100x8", EXAMPLES / f"{example}.yaml")[0] == 1


def test_mig_slices_of_one_gpu_are_shown_with_profile_memory_and_model(dryrun: DryRun) -> None:
    code, out, _ = dryrun("--built-in", EXAMPLES / "mig-slices.yaml", "-o", "wide")
    assert code == 0
    rows = [line.split() for line in out.splitlines() if line.startswith("default/mig-slices")]
    assert [row[1] for row in rows] == ["small-0", "small-1", "medium", "large"]
    assert [row[3] for row in rows] == ["1g.10gb", "1g.10gb", "2g.20gb", "3g.40gb"]
    assert len({row[-1] for row in rows}) == 1, "all on one GPU"


def test_slices_in_files_say_where_a_claim_fits(dryrun: DryRun, write: Write) -> None:
    slices = write("slices.json", {"apiVersion": "v1", "kind": "List", "items": [slice_of("node-a", gpu("gpu-0"))]})
    wanted = write("claim.yaml", claim("device.attributes['gpu.nvidia.com'].productName.contains('H100')"))
    code, out, _ = dryrun("--slices", slices, wanted)
    assert code == 0
    assert "fits  ResourceClaim wanted: on node node-a" in out


def test_a_claim_that_fits_nowhere_exits_with_1_and_says_what_is_in_the_way(dryrun: DryRun, write: Write) -> None:
    slices = write("slices.json", slice_of("node-a", gpu("gpu-0"), gpu("gpu-1")))
    code, out, _ = dryrun("--slices", slices, write("claim.yaml", claim(count=3)))
    assert code == 1
    assert "fits nowhere  ResourceClaim wanted: the only node is not suitable" in out
    assert "request gpu wants 3, 2 of 2 devices qualify" in out
    code, out, _ = dryrun("--slices", slices, write("claim.yaml", claim("device.driver == 'other'")))
    assert code == 1
    assert "2 not matched by its selector: device.driver == 'other'" in out
    assert "found driver=gpu.nvidia.com" in out


def test_a_selector_that_fails_or_does_not_compile_is_never_a_yes(dryrun: DryRun, write: Write) -> None:
    slices = write("slices.json", slice_of("node-a", gpu("gpu-0")))
    fails = "device.attributes['gpu.nvidia.com'].profil == 'x'"
    code, out, _ = dryrun("--slices", slices, write("claim.yaml", claim(fails)))
    assert code == 1
    assert "every node" in out
    for expression in ("device.unknown == 1", "unknown(device)", "1 +"):
        code, out, _ = dryrun("--slices", slices, write("claim.yaml", claim(expression)))
        assert code == 1, expression
        assert "not admitted  ResourceClaim wanted: claim wanted: selector 0 of request gpu does not compile" in out


def test_a_class_with_a_typing_error_is_an_error_that_names_the_class(dryrun: DryRun, write: Write) -> None:
    text = claim().replace("deviceClassName: gpu.nvidia.com", "deviceClassName: gpu.nvdia.com")
    code, _, err = dryrun("--built-in", write("claim.yaml", text))
    assert code == 2
    said = "request gpu: there is no DeviceClass 'gpu.nvdia.com'; did you mean 'gpu.nvidia.com'?"
    assert err == f"error: ResourceClaim wanted: {said}\n"


@pytest.mark.parametrize(("field", "value"), [("name", "C_1"), ("namespace", "team.a")])
def test_names_are_refused_as_by_the_api_server(field: str, value: str, dryrun: DryRun, write: Write) -> None:
    text = claim().replace(
        "{name: wanted}", f"{{name: wanted, {field}: {value}}}".replace("name: wanted, name", "name")
    )
    code, _, err = dryrun("--built-in", write("claim.yaml", text))
    assert code == 2
    assert f'metadata.{field}: Invalid value: "{value}": ' in err


def test_pods_are_placed_one_after_the_other(dryrun: DryRun, write: Write) -> None:
    slices = write("slices.json", slice_of("node-a", gpu("gpu-0")))
    code, out, _ = dryrun("--slices", slices, "-o", "json", EXAMPLES / "whole-gpu.yaml")
    assert code == 1
    first, second = json.loads(out)["demands"]
    assert first["fits"]
    assert first["devices"][0]["device"] == "gpu-0"
    assert not second["fits"]
    (removed,) = second["refused"][0]["requests"][0]["removed"]
    assert removed["check"] == "in use"
    assert [one["value"] for one in removed["saw"]] == ["by default/whole-gpu-0-gpu"]


def test_the_basic_form_in_a_v1_document_is_refused_with_the_fix(dryrun: DryRun, write: Write) -> None:
    old = {"name": "gpu-0", "basic": {"attributes": {"type": {"string": "gpu"}}}}
    code, _, err = dryrun("--slices", write("s.json", slice_of("a", old)), write("claim.yaml", claim()))
    assert code == 2
    assert "move everything under 'basic' one level up" in err
    code, out, _ = dryrun(
        "--slices",
        write("s.json", slice_of("a", old, api_version="resource.k8s.io/v1beta1")),
        write("claim.yaml", claim()),
    )
    assert code == 0
    assert "on node a" in out


def test_bad_input_exits_with_2_and_one_line(dryrun: DryRun, write: Write) -> None:
    for text in ("a: [", "{apiVersion: v1, kind: ConfigMap}", claim().replace("count", "cuont")):
        code, out, err = dryrun(write("claim.yaml", text))
        assert code == 2
        assert out == ""
        assert len(err.splitlines()) == 1
        assert "claim.yaml" in err
    code, _, err = dryrun("--slices", write("none.yaml", claim()), write("claim.yaml", claim()))
    assert code == 2, err
    assert "there is no ResourceSlice in it" in err


@pytest.mark.cluster
def test_a_live_cluster_is_read(dryrun: DryRun, write: Write, client: ApiClient, kubeconfig: Path) -> None:
    node = "dryrun-node"
    client.create(NODES, {"apiVersion": "v1", "kind": "Node", "metadata": {"name": node}})
    client.create(SLICES, slice_of(node, gpu("gpu-0", "only here")))
    wanted = write("claim.yaml", claim("device.attributes['gpu.nvidia.com'].productName == 'only here'"))
    code, out, _ = dryrun("--kubeconfig", kubeconfig, wanted)
    assert code == 0
    assert f"on node {node}" in out


@pytest.mark.cluster
def test_a_cluster_that_cannot_be_reached_is_an_error(dryrun: DryRun, write: Write) -> None:
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "c",
        "clusters": [{"name": "c", "cluster": {"server": "http://127.0.0.1:1"}}],
        "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
        "users": [{"name": "u", "user": {}}],
    }
    code, out, err = dryrun("--kubeconfig", write("config", config), write("claim.yaml", claim()))
    assert code == 2, "neither yes nor no"
    assert out == ""
    assert "127.0.0.1:1" in err
    assert len(err.splitlines()) == 1


@pytest.mark.parametrize("name", ["capacity", "cel", "fit", "gpus", "lint", "migrate", "node-template", "snapshot"])
def test_help_of_a_subcommand_shows_each_option_in_one_group(name: str, dryrun: DryRun) -> None:
    code, out, _ = dryrun(name, "--help")
    assert code == 0
    options = [max(one.opts, key=len) for one in dryrun_command.commands[name].params if isinstance(one, click.Option)]
    sections = out[out.index("Options that are often used:") : out.index("\nEnvironment:")]
    shown = [word.rstrip(",") for line in sections.splitlines() if line.startswith("  -") for word in line.split()[:2]]
    assert {option: shown.count(option) for option in options} == dict.fromkeys(options, 1)
    first = out.partition("Options that are often used:\n")[2].partition("\n\n")[0]
    assert 1 <= sum(line.startswith("  -") for line in first.splitlines()) <= 10

# SPDX-License-Identifier: Apache-2.0
"""The cluster that the user means: kubeconfig files and contexts as for kubectl, and what is read of it."""

import json
import socket
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml

from dra_driver.dryrun.connection import ClusterChoice, ClusterConnection
from dra_driver.kube.api import ApiClient, UnreachableError
from dra_driver.kube.kinds import NAMESPACES, NODES, classes_of, templates_of
from dra_driver.kube.resource.codec import V1
from tests.support.apiserver import CLAIMS, SLICES, embedded, kubeconfig_of_user
from tests.support.paging import Collection, paged

from .conftest import DryRun, Write, gpu, install_classes, slice_of
from .test_command import claim
from .test_whole_pod import node, pod, running

pytestmark = pytest.mark.cluster

JSON = dict[str, Any]
TEMPLATES = templates_of(V1)
CLASSES = classes_of(V1)
BUILT_IN = "built-in example nodes"


@pytest.fixture
def wanted(write: Write) -> Path:
    return write("claim.yaml", claim())


@pytest.fixture(scope="module")
def server(kubeconfig: Path) -> JSON:
    """The kubeconfig of a running cluster as a mapping."""
    found: JSON = yaml.safe_load(kubeconfig.read_text(encoding="utf-8"))
    return found


def entry(server: JSON, kind: str) -> JSON:
    found: JSON = server[f"{kind}s"][0][kind]
    return found


def config(server: JSON, context: str, **more: Any) -> JSON:
    """A kubeconfig of one context."""
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": context,
        "clusters": [{"name": f"{context}-cluster", "cluster": entry(server, "cluster")}],
        "users": [{"name": f"{context}-user", "user": {**entry(server, "user"), **more.pop("user", {})}}],
        "contexts": [
            {"name": context, "context": {"cluster": f"{context}-cluster", "user": f"{context}-user", **more}}
        ],
    }


@pytest.mark.parametrize("command", [["capacity"], ["cel", "true"], ["snapshot"], ["fit"], ["lint"]])
def test_every_subcommand_asks_the_cluster_of_the_home_folder(
    command: list[str], dryrun: DryRun, wanted: Path, server: JSON, tmp_path: Path
) -> None:
    home = tmp_path / "home/.kube"
    home.mkdir(parents=True)
    (home / "config").write_text(json.dumps(config(server, "at-home")), encoding="utf-8")
    files = [wanted] if command[0] in ("fit", "lint") else []
    code, out, err = dryrun(*command, *files)
    assert code in (0, 1)
    if command[0] == "snapshot":
        assert "kind: DeviceClass" in out
        return
    assert f"{entry(server, 'cluster')['server']} (context at-home of {home / 'config'})" in (out + err).splitlines()[0]


def test_without_any_configuration_the_built_in_nodes_are_used_and_named(dryrun: DryRun, wanted: Path) -> None:
    code, out, _ = dryrun(wanted)
    assert code == 0
    assert f"{BUILT_IN} (no cluster is configured)" in out.splitlines()[0]


def test_a_configured_cluster_that_is_away_is_an_error_and_not_replaced(
    dryrun: DryRun, wanted: Path, write: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    away = {"clusters": [{"cluster": {"server": "http://127.0.0.1:1"}}], "users": [{"user": {}}]}
    monkeypatch.setenv("KUBECONFIG", str(write("config", config(away, "away"))))
    code, out, err = dryrun(wanted)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert "127.0.0.1:1" in err
    code, out, _ = dryrun(wanted, "--built-in")
    assert code == 0
    assert f"{BUILT_IN} (no cluster was asked)" in out.splitlines()[0]


def test_several_files_are_merged_and_the_first_context_counts(
    dryrun: DryRun, write: Write, server: JSON, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    first, second = config(server, "first"), config(server, "second")
    first["contexts"].append({"name": "third", "context": {"cluster": "second-cluster", "user": "second-user"}})
    second["clusters"].append({"name": "first-cluster", "cluster": {"server": "http://127.0.0.1:1"}})
    files = [write("first", first), tmp_path / "missing", write("second", second)]
    monkeypatch.setenv("KUBECONFIG", ":".join(map(str, files)))
    assert "(context first of " in dryrun("capacity")[1]
    for context in ("second", "third"):
        code, out, _ = dryrun("capacity", "--context", context)
        assert code == 0, out
        assert f"(context {context} of " in out
    code, _, err = dryrun("capacity", "--context", "nowhere")
    assert code == 2, err
    assert err.count("\n") == 1
    assert "nowhere" in err


def test_files_that_are_not_there_are_no_reason_for_other_nodes(
    dryrun: DryRun, wanted: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    assert "there is no such file" in dryrun(wanted, "--kubeconfig", tmp_path / "missing")[2]
    monkeypatch.setenv("KUBECONFIG", f"{tmp_path / 'a'}:{tmp_path / 'b'}")
    code, _, err = dryrun(wanted)
    assert code == 2, err
    assert "no file exists" in err


@pytest.mark.parametrize("flags", [["--context", "prod"], ["--as", "root"]])
def test_a_missing_kubeconfig_is_named_by_the_files_that_were_looked_for(
    flags: list[str], dryrun: DryRun, wanted: Path, tmp_path: Path
) -> None:
    code, _, err = dryrun(wanted, *flags)
    assert code == 2
    assert f"KUBECONFIG is not set, and there is no file {tmp_path / 'home/.kube/config'}" in err


def test_a_login_program_is_run_and_its_failure_is_one_line(
    dryrun: DryRun, write: Write, server: JSON, tmp_path: Path
) -> None:
    token = entry(server, "user").get("token")
    if token is None:
        pytest.skip("the server of KUBEBUILDER_ASSETS knows certificates only")
    credential = {"apiVersion": "client.authentication.k8s.io/v1", "kind": "ExecCredential", "status": {"token": token}}
    answer = write("credential.json", credential)
    run = {"apiVersion": "client.authentication.k8s.io/v1", "interactiveMode": "Never"}
    made = config(server, "program")
    made["users"][0]["user"] = {"exec": {**run, "command": "cat", "args": [str(answer)]}}
    assert dryrun("capacity", "--kubeconfig", write("config", made))[0] == 0
    made["users"][0]["user"]["exec"] |= {"command": "sh", "args": ["-c", "echo no >&2; exit 3"]}
    code, out, err = dryrun("capacity", "--kubeconfig", write("config", made))
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert "user 'program-user': exec:" in err


def test_cluster_is_read_as_the_user_of_flag_or_kubeconfig(dryrun: DryRun, write: Write, tmp_path: Path) -> None:
    with embedded(tmp_path, rbac=True) as (_, path, client):
        install_classes(client)
        code, out, err = dryrun("capacity", "--kubeconfig", path, "--as", "nobody")
        assert (code, out, err.count("\n")) == (2, "", 1)
        assert "nobody" in err
        made = yaml.safe_load(path.read_text(encoding="utf-8"))
        made["users"][0]["user"]["as"] = "nobody"
        assert dryrun("capacity", "--kubeconfig", write("as", made))[0] == 2
        assert dryrun("capacity", "--kubeconfig", path)[0] == 0


@pytest.mark.parametrize(
    ("flags", "both"),
    [
        (["--kubeconfig", "x", "--slices", "y"], "--slices and --kubeconfig"),
        (["--context", "x", "--built-in"], "--context and --built-in"),
        (["--in-cluster", "--context", "x"], "--context and --in-cluster"),
        (["--slices", "y", "--built-in"], "--slices and --built-in"),
        (["--as", "me", "--slices", "y"], "--slices and --as"),
    ],
)
def test_options_that_exclude_each_other_are_an_error(
    flags: list[str], both: str, dryrun: DryRun, wanted: Path
) -> None:
    code, out, err = dryrun(wanted, *flags)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert f"{both} exclude each other" in err


def test_the_command_line_counts_more_than_the_environment(
    dryrun: DryRun, wanted: Path, kubeconfig: Path, write: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DRA_DRYRUN_SLICES", str(write("slices.json", slice_of("n", gpu("gpu-0")))))
    assert "slices.json" in dryrun(wanted)[1].splitlines()[0]
    assert "cluster http" in dryrun(wanted, "--kubeconfig", kubeconfig)[1].splitlines()[0]


@contextmanager
def silent_server() -> Iterator[int]:
    """The port of a server that accepts connections and never answers."""
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen()
        yield listening.getsockname()[1]


def test_a_server_that_does_not_answer_is_reported_after_the_time_limit(
    dryrun: DryRun, wanted: Path, write: Write
) -> None:
    with silent_server() as port:
        away = {"clusters": [{"cluster": {"server": f"http://127.0.0.1:{port}"}}], "users": [{"user": {}}]}
        path = write("config", config(away, "silent"))
        code, out, err = dryrun(wanted, "--kubeconfig", path, "--request-timeout", "300ms")
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert "does not answer within 0.3 s (see --request-timeout)" in err


def test_a_watch_without_a_request_timeout_still_has_its_own_limit(write: Write) -> None:
    with silent_server() as port:
        away = {"clusters": [{"cluster": {"server": f"http://127.0.0.1:{port}"}}], "users": [{"user": {}}]}
        choice = ClusterChoice(str(write("config", config(away, "silent"))), seconds=0)
        with closing(ClusterConnection(choice)) as connection, pytest.raises(UnreachableError, match=r"within 0\.3 s"):
            connection.request("GET", "/", stream_seconds=0.3, repeatable=False)


@pytest.mark.parametrize("text", ["10s", "1m30s", "0", "2.5"])
def test_time_limits_are_written_as_for_kubectl(text: str, dryrun: DryRun, kubeconfig: Path) -> None:
    assert dryrun("capacity", "--kubeconfig", kubeconfig, "--request-timeout", text)[0] == 0
    assert dryrun("capacity", "--kubeconfig", kubeconfig, "--request-timeout", f"{text}?")[0] == 2


def referring(name: str, **claim: str) -> JSON:
    made = pod(name)
    made["spec"]["resourceClaims"] = [{"name": "gpu", **claim}]
    return made


@pytest.fixture(scope="session")  # like the cluster: a worker may run the tests of this module in two parts
def in_team(client: ApiClient) -> str:
    """A namespace with a template and a claim, and a node with the GPU that they want."""
    client.create(NAMESPACES, {"metadata": {"name": "team"}})
    made = node("team-node")
    client.create(NODES, made)
    client.update(NODES, {**client.get(NODES, "team-node"), "status": made["status"]}, subresource="status")
    client.create(SLICES, slice_of("team-node", gpu("gpu-0", "team's own")))
    spec = yaml.safe_load(claim("device.attributes['gpu.nvidia.com'].productName == \"team's own\""))["spec"]
    client.create(TEMPLATES, {"metadata": {"name": "shape"}, "spec": {"spec": spec}}, "team")
    client.create(CLAIMS, {"metadata": {"name": "mine"}, "spec": spec}, "team")
    return "team"


@pytest.mark.parametrize("reference", [{"resourceClaimName": "mine"}, {"resourceClaimTemplateName": "shape"}])
def test_claim_of_a_pod_is_read_from_the_pods_namespace(
    reference: dict[str, str], dryrun: DryRun, write: Write, kubeconfig: Path, server: JSON, in_team: str
) -> None:
    path = write("pod.json", referring("p", **reference))
    code, out, err = dryrun(path, "--kubeconfig", kubeconfig, "-n", in_team)
    assert code == 0, out + err
    assert "fits  Pod team/p: on node team-node" in out, out + err
    of_context = write("context", config(server, "of-team", namespace=in_team))
    assert dryrun(path, "--kubeconfig", of_context)[0] == 0
    code, out, _ = dryrun(path, "--kubeconfig", kubeconfig)
    kind, name = next(iter(reference.items()))
    assert code == 1
    assert f"there is no {kind.removesuffix('Name')[0].upper()}{kind.removesuffix('Name')[1:]} default/{name}" in out
    assert f"similar: {in_team}/{name}" in out
    named = referring("p", **reference)
    named["metadata"]["namespace"] = in_team
    assert dryrun(write("named.json", named), "--kubeconfig", kubeconfig)[0] == 0
    code, _, err = dryrun(write("named.json", named), "--kubeconfig", kubeconfig, "-n", "other")
    assert code == 2, err
    assert "its namespace is not 'other'" in err


@pytest.mark.parametrize("expires", [False, True])
def test_a_large_cluster_is_read_in_pages_and_each_object_counts_once(
    expires: bool, dryrun: DryRun, write: Write, tmp_path: Path
) -> None:
    """Also when the pages after the first are too old, and all has to be read again."""
    collections = {
        "/api/v1/nodes": Collection(600, lambda number: node(f"node-{number}", cpu="2"), expires),
        "/api/v1/pods": Collection(600, lambda number: running(f"p-{number}", f"node-{number}", "1"), expires),
    }
    with paged(collections) as server:
        code, out, err = dryrun("--kubeconfig", server.write_kubeconfig(tmp_path / "config"), write("p.json", pod("p")))
    assert code == 0, out + err
    assert "on node node-0, and on 599 other nodes" in out, out + err
    for path in collections:
        assert server.asked[path][0]["limit"] == "500"
        assert server.asked[path][1] == {"limit": "500", "continue": "500"}
        assert server.asked[path][2:] == ([{}] if expires else [])


def test_a_class_that_the_cluster_lacks_is_not_invented(dryrun: DryRun, wanted: Path, tmp_path: Path) -> None:
    with embedded(tmp_path) as (_, path, client):
        client.create(NODES, {"metadata": {"name": "a"}})
        client.create(SLICES, slice_of("a", gpu("gpu-0")))
        code, out, err = dryrun(wanted, "--kubeconfig", path)
        assert code == 2, out
        assert "there is no DeviceClass 'gpu.nvidia.com'" in out
        assert (
            "error: ResourceClaim wanted: request gpu: there is no DeviceClass 'gpu.nvidia.com' (there is none)" in err
        )
        install_classes(client)
        assert dryrun(wanted, "--kubeconfig", path)[0] == 0


def test_an_empty_cluster_says_what_it_lacks(dryrun: DryRun, wanted: Path, write: Write, tmp_path: Path) -> None:
    mig = write("mig.yaml", claim().replace("gpu.nvidia.com\n", "mig.nvidia.com\n"))
    with embedded(tmp_path, minor=34) as (_, path, client):
        install_classes(client)
        client.create(NODES, {"metadata": {"name": "a"}})
        code, out, _ = dryrun(wanted, "--kubeconfig", path)
        assert code == 1, out
        assert "the cluster has no ResourceSlice of any driver" in out
        assert "the cluster has no ResourceSlice of any driver" in dryrun("capacity", "--kubeconfig", path)[1]
        other = slice_of("a", gpu("gpu-0"))
        other["spec"]["driver"] = "other.example.com"
        client.create(SLICES, other)
        said = "there is no ResourceSlice of driver gpu.nvidia.com, which DeviceClass gpu.nvidia.com selects"
        assert f"{said} (there are slices of other.example.com)" in dryrun(wanted, "--kubeconfig", path)[1]
        client.create(SLICES, {**slice_of("a", gpu("gpu-0")), "metadata": {"name": "ours"}})
        said = "Kubernetes 1.34 without DRAPartitionableDevices: MIG placements are not published"
        assert said in dryrun(mig, "--kubeconfig", path)[1]


@pytest.mark.parametrize("flag", ["", "--watch", "--until-fits"])
def test_missing_rights_are_one_line_with_verb_and_resource(
    flag: str, dryrun: DryRun, wanted: Path, tmp_path: Path
) -> None:
    with embedded(tmp_path, rbac=True) as (server, _, client):
        install_classes(client)
        rules: list[JSON] = [{"apiGroups": ["", "resource.k8s.io"], "resources": ["nodes", "*"], "verbs": ["list"]}]
        rules.append({"nonResourceURLs": ["/apis/*"], "verbs": ["get"]})
        if not flag:
            rules[0]["resources"] = ["nodes"]
        path = kubeconfig_of_user(server, client, tmp_path, rules)
        code, out, err = dryrun(wanted, "--kubeconfig", path, *([flag] if flag else []))
        assert (code, out, err.count("\n")) == (2, "", 1)
        verb = "watch" if flag else "list"
        assert f"not allowed to {verb} resourceslices.resource.k8s.io" in err
        assert "someone" in err


def test_variables_of_one_subcommand_are_not_read_by_others(
    dryrun: DryRun, wanted: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DRA_DRYRUN_FIT_OUTPUT", "html")
    assert dryrun(wanted)[1].startswith("<!doctype html>")
    assert dryrun("capacity")[0] == 0
    monkeypatch.setenv("DRA_DRYRUN_WITHOUT_CLAIMS", "1")
    assert "no claim in use" in dryrun("capacity")[1]
    monkeypatch.setenv("LOG_FORMAT", "nonsense")
    assert dryrun("capacity")[0] == 0


def test_the_package_is_imported_only_when_a_cluster_is_asked(
    wanted: Path, write: Write, dryrun: DryRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] == "kubernetes"]:
        monkeypatch.delitem(sys.modules, name)
    assert dryrun(wanted, "--slices", write("slices.json", slice_of("n", gpu("gpu-0"))))[0] == 0
    assert "kubernetes" not in sys.modules

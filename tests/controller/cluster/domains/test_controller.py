# SPDX-License-Identifier: Apache-2.0
"""ComputeDomains in a real API: from claims to labels, daemons, members and status, and back."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from controller.cluster.domains.objects import FINALIZER
from dra_driver.domains.daemon.main import imex_daemon
from dra_driver.domains.names import DOMAIN_LABEL, TARGET_LABEL, clique_name, daemon_name, host_name
from dra_driver.domains.objects import CLIQUES, COMPUTE_DOMAINS, DaemonReport
from dra_driver.kube.api import ApiClient, Kind
from dra_driver.kube.kinds import (
    CERTIFICATES,
    DAEMON_SETS,
    DEFINITIONS,
    NETWORK_POLICIES,
    NODES,
    PODS,
    SERVICE_ACCOUNTS,
)
from dra_driver.kube.resource.codec import V1
from tests.support.apiserver import embedded
from tests.support.faultyserver import FaultyServer
from tests.support.waiting import wait_for

from .cluster import ACCOUNT, NAMESPACE, READY, SETTINGS, TEMPLATES, Cluster, Work, at_work

pytestmark = pytest.mark.cluster

JSON = dict[str, Any]
ANY = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
RACK, OTHER = "c0ffee.1", "c0ffee.2"
_LOOKS = 8


@pytest.fixture
def served(tmp_path: Path) -> Iterator[tuple[FaultyServer, ApiClient]]:
    with embedded(tmp_path) as (server, _, client):
        yield server, client


@pytest.fixture
def cluster(served: tuple[FaultyServer, ApiClient]) -> Cluster:
    return Cluster(served[1]).install()


def test_a_domain_follows_its_workload(cluster: Cluster) -> None:
    nodes = [cluster.node(f"node-{number}", RACK if number < 3 else OTHER) for number in range(5)]
    outside = cluster.node("node-out")
    uid = cluster.domain()
    with at_work(cluster.client) as work:
        wait_for(lambda: cluster.get(DAEMON_SETS, daemon_name(uid)), "the DaemonSet")
        wait_for(lambda: cluster.condition("DomainUp")[1] == "NoNodes", "the first status")
        assert cluster.status()["status"] == "NotReady", "a domain without nodes"
        template = cluster.get(TEMPLATES, "train-channel", "ml")
        assert template is not None
        assert template["spec"]["spec"]["devices"]["requests"][0]["name"] == "channel"
        for kind, name in ((TEMPLATES, daemon_name(uid)), (NETWORK_POLICIES, daemon_name(uid))):
            found = cluster.get(kind, name)
            assert found is not None
            assert found["metadata"]["ownerReferences"][0]["name"] == ACCOUNT
        claims = [cluster.claim(uid, node) for node in (*nodes, outside)]
        cluster.claim(uid, nodes[0], namespace="other")  # the plugin refuses this one
        cluster.until_ready()
        assert cluster.labels() == dict.fromkeys(nodes, uid)
        assert sorted(cluster.rows(uid, RACK).values()) == [0, 1, 2]
        assert sorted(cluster.rows(uid, OTHER).values()) == [0, 1]
        shown = {one["name"]: (one["index"] >= 0, one["status"]) for one in cluster.status()["nodes"]}
        assert shown == {**dict.fromkeys(nodes, (True, "Ready")), outside: (False, "Ready")}
        assert [cluster.condition(one)[0] for one in ("TemplateCreated", "DaemonsReady", "DomainUp")] == ["True"] * 3
        wait_for(lambda: work.count("compute_domain_info", status="Ready") == 1, "the metric, which follows the status")
        for claim in claims:
            cluster.release(claim)
        cluster.until(lambda: not cluster.labels() and not cluster.rows(uid, RACK), "all nodes to leave")
        wait_for(lambda: cluster.condition("DomainUp")[1] == "NoNodes", "the last status")
        cluster.client.delete(COMPUTE_DOMAINS, "train", "ml")
        wait_for(lambda: not leftovers(cluster, uid), "everything of the domain to go")
        assert work.problem is None


def leftovers(cluster: Cluster, uid: str) -> list[str]:
    """What there is of a domain."""
    found = [
        one["metadata"]["name"]
        for kind in (TEMPLATES, DAEMON_SETS, NETWORK_POLICIES, CLIQUES)
        for one in cluster.client.list(kind, label_selector=f"{DOMAIN_LABEL}={uid}").items
    ]
    return [*found, *(name for name, label in cluster.labels().items() if label == uid)]


def test_everything_that_is_edited_or_deleted_is_restored(cluster: Cluster) -> None:
    node = cluster.node("node-0", RACK)
    uid = cluster.domain()
    name, rows = daemon_name(uid), clique_name(uid, RACK)
    with at_work(cluster.client) as work:
        cluster.claim(uid, node)
        cluster.until_ready()
        kinds = [(DAEMON_SETS, name), (TEMPLATES, name), (NETWORK_POLICIES, name), (CLIQUES, rows)]
        for kind, each, namespace in [*((*one, NAMESPACE) for one in kinds), (TEMPLATES, "train-channel", "ml")]:
            before = cluster.client.get(kind, each, namespace)
            cluster.client.delete(kind, each, namespace)
            wait_for(lambda: is_again(cluster, kind, each, namespace, before), f"{each} to be made again")  # noqa: B023
        cluster.until_ready()
        edits: list[tuple[Kind, str, JSON]] = [
            (DAEMON_SETS, name, {"spec": {"template": {"spec": {"priorityClassName": ""}}}}),
            (DAEMON_SETS, name, {"metadata": {"labels": {DOMAIN_LABEL: None}}}),
            (DAEMON_SETS, name, {"metadata": {"ownerReferences": None}}),
            (TEMPLATES, name, {"metadata": {"labels": {TARGET_LABEL: "x"}}}),
            (NETWORK_POLICIES, name, {"spec": {"ingress": []}}),
            (CLIQUES, rows, {"daemons": []}),
            (CLIQUES, rows, {"daemons": [{"nodeName": node, "ipAddress": "1.2.3.4", "cliqueID": "x", "index": 7}]}),
            (CLIQUES, rows, {"metadata": {"annotations": {"resource.nvidia.com/computeDomain.indices": "?"}}}),
            (CLIQUES, rows, {"metadata": {"labels": None, "annotations": None}}),
            (NODES, node, {"metadata": {"labels": {DOMAIN_LABEL: "x"}}}),
            (NODES, node, {"metadata": {"labels": {DOMAIN_LABEL: None}}}),
        ]
        for kind, each, change in edits:
            namespace = NAMESPACE if kind.namespaced else ""
            right = content(cluster.client.get(kind, each, namespace))
            cluster.client.patch(kind, each, change, namespace=namespace)
            wait_for(
                lambda: content(cluster.client.get(kind, each, namespace)) == right,  # noqa: B023
                f"{change} to be undone",
            )
        cluster.until_ready()
        at_rest(work)


def is_again(cluster: Cluster, kind: Kind, name: str, namespace: str, before: JSON) -> bool:
    found = cluster.get(kind, name, namespace)
    return found is not None and bool(found["metadata"]["uid"] != before["metadata"]["uid"])


def content(value: JSON) -> JSON:
    """What the controller decides of an object."""
    meta = {key: value["metadata"].get(key) for key in ("labels", "annotations", "ownerReferences")}
    rows = [
        {key: one[key] for key in ("nodeName", "ipAddress", "cliqueID", "index")} for one in value.get("daemons", [])
    ]
    meta["annotations"] = {k: v for k, v in (meta["annotations"] or {}).items() if not k.startswith("deprecated.")}
    return {"metadata": meta, "spec": value.get("spec"), "daemons": rows}


def at_rest(*work: Work) -> None:
    """Nothing is written any more: as far as several looks can tell."""
    last: list[float] = []

    def same() -> bool:
        last.append(sum(one.writes for one in work))
        return last[-_LOOKS:] == last[-1:] * _LOOKS

    wait_for(same, "the writes to end")


def test_a_changed_image_rolls_out_and_server_defaults_do_not(cluster: Cluster) -> None:
    uid = cluster.domain()
    odd, resources = ({"requests": {"cpu": cpu, "memory": "1Gi"}} for cpu in ("0.1", "100m"))  # the server stores 100m
    for image, amounts in (("example.com/dra:1", odd), ("example.com/dra:2", resources)):
        with at_work(cluster.client, replace(SETTINGS, image=image, resources=amounts)) as work:
            wait_for(lambda: image_of(cluster, uid) == image, f"image {image}")  # noqa: B023
            at_rest(work)
    generation = cluster.client.get(DAEMON_SETS, daemon_name(uid), NAMESPACE)["metadata"]["generation"]
    assert generation == 2
    with at_work(cluster.client, replace(SETTINGS, image="example.com/dra:2", resources=resources)) as work:
        other = cluster.domain("second")
        wait_for(lambda: cluster.get(DAEMON_SETS, daemon_name(other)), "another domain")
        at_rest(work)
    assert cluster.client.get(DAEMON_SETS, daemon_name(uid), NAMESPACE)["metadata"]["generation"] == generation


def image_of(cluster: Cluster, uid: str) -> str:
    found = cluster.get(DAEMON_SETS, daemon_name(uid))
    return "" if found is None else str(found["spec"]["template"]["spec"]["containers"][0]["image"])


def test_a_template_of_somebody_else_is_left_alone(cluster: Cluster) -> None:
    requests = [{"name": "gpu", "exactly": {"deviceClassName": "gpu.nvidia.com"}}]
    value = {
        "apiVersion": V1.api_version,
        "kind": "ResourceClaimTemplate",
        "metadata": {"name": "mine"},
        "spec": {"spec": {"devices": {"requests": requests}}},
    }
    before = cluster.client.create(TEMPLATES, value, "ml")
    with at_work(cluster.client):
        uid = cluster.domain(template="mine")
        wait_for(lambda: cluster.condition("TemplateCreated")[1] == "NameTaken", "the condition")
        assert "ml/mine exists" in cluster.condition("TemplateCreated")[2]
        assert cluster.get(TEMPLATES, "mine", "ml") == before
        cluster.client.delete(TEMPLATES, "mine", "ml")
        wait_for(lambda: cluster.condition("TemplateCreated")[0] == "True", "ours")
        made = cluster.client.get(TEMPLATES, "mine", "ml")
        assert made["metadata"]["labels"] == {DOMAIN_LABEL: uid, TARGET_LABEL: "Workload"}
        cluster.client.delete(COMPUTE_DOMAINS, "train", "ml")
        wait_for(lambda: not leftovers(cluster, uid), "everything to go")


def test_objects_of_the_official_driver_are_taken_over(cluster: Cluster) -> None:
    uid = cluster.domain()
    gone = "11111111-2222-3333-4444-555555555555"
    for one in (uid, gone):
        for target, name, namespace in (("Workload", "train-channel", "ml"), ("Daemon", daemon_name(one), NAMESPACE)):
            if (one, target) == (gone, "Workload"):
                name = "gone-channel"
            labels = {DOMAIN_LABEL: one, TARGET_LABEL: target}
            metadata = {"name": name, "labels": labels, "finalizers": [FINALIZER]}
            requests = [
                {"name": "channel", "exactly": {"deviceClassName": "compute-domain-default-channel.nvidia.com"}}
            ]
            spec = {"spec": {"devices": {"requests": requests}}}
            value = {"apiVersion": V1.api_version, "kind": "ResourceClaimTemplate", "metadata": metadata, "spec": spec}
            cluster.client.create(TEMPLATES, value, namespace)
    cluster.client.patch(COMPUTE_DOMAINS, "train", {"metadata": {"finalizers": [FINALIZER]}}, namespace="ml")
    cluster.client.create(NODES, {"metadata": {"name": "node-0", "labels": {DOMAIN_LABEL: gone}}})
    with at_work(cluster.client):
        wait_for(lambda: not leftovers(cluster, gone), "what a domain left behind to go")
        wait_for(lambda: cluster.condition("TemplateCreated")[0] == "True", "the template to be taken over")
        ours = ((TEMPLATES, "train-channel", "ml"), (TEMPLATES, daemon_name(uid), NAMESPACE))
        wait_for(lambda: all(no_finalizer(cluster.get(*one)) for one in ours), "no finalizer")
        selectors = cluster.client.get(TEMPLATES, "train-channel", "ml")["spec"]["spec"]["devices"]["requests"][0]
        assert "domain" in str(selectors)
        cluster.client.delete(COMPUTE_DOMAINS, "train", "ml")
        wait_for(lambda: not cluster.get(COMPUTE_DOMAINS, "train", "ml"), "the ComputeDomain to go")
        wait_for(lambda: not leftovers(cluster, uid), "everything to go")


def no_finalizer(value: JSON | None) -> bool:
    return value is not None and not value["metadata"].get("finalizers")


def test_a_node_belongs_to_one_domain_at_a_time(cluster: Cluster) -> None:
    node = cluster.node("node-0", RACK)
    first, second = cluster.domain("train"), cluster.domain("serve")
    with at_work(cluster.client):
        claim = cluster.claim(first, node)
        cluster.until_ready("train")
        cluster.claim(second, node)
        wait_for(lambda: cluster.condition("DaemonsReady", "serve")[1] == "NodeInOtherDomain", "the condition")
        assert "ml/train" in cluster.condition("DaemonsReady", "serve")[2]
        assert cluster.labels() == {node: first}
        wait_for(lambda: len(cluster.events("NodeInOtherDomain")) == 2, "an event on the domain and on the claim")
        cluster.release(claim)
        cluster.until_ready("serve")
        assert cluster.labels() == {node: second}


def test_a_node_that_moves_to_another_clique_gets_a_new_daemon(cluster: Cluster) -> None:
    nodes = [cluster.node(f"node-{number}", RACK) for number in range(2)]
    uid = cluster.domain()
    with at_work(cluster.client):
        for node in nodes:
            cluster.claim(uid, node)
        cluster.until_ready()
        before = {one["spec"]["nodeName"]: one["metadata"]["name"] for one in cluster.pods()}
        cluster.move(nodes[1], "", settled=False)  # a fabric that starts is not a node without a fabric
        cluster.move(nodes[1], OTHER)
        cluster.until(lambda: set(cluster.rows(uid, OTHER)) == {nodes[1]}, "the node to join the other clique")
        assert set(cluster.rows(uid, RACK)) == {nodes[0]}
        cluster.until_ready()

        def daemons() -> dict[str, str]:
            return {one["spec"]["nodeName"]: one["metadata"]["name"] for one in cluster.pods()}

        # The status that says Ready may be older than the move.
        cluster.until(lambda: daemons().get(nodes[1], before[nodes[1]]) != before[nodes[1]], "the new daemon")
        assert daemons()[nodes[0]] == before[nodes[0]]


def test_nodes_join_a_running_domain_after_the_settings_have_changed(cluster: Cluster) -> None:
    nodes = [cluster.node(f"node-{number}", RACK) for number in range(3)]
    uid = cluster.domain()
    with at_work(cluster.client, replace(SETTINGS, most_nodes=4, network_policy=False)):
        for node in nodes[:2]:
            cluster.claim(uid, node)
        cluster.until_ready()
    before = cluster.rows(uid, RACK)
    with at_work(cluster.client, replace(SETTINGS, most_nodes=8, log_level=4)):
        cluster.claim(uid, nodes[2])
        cluster.until(lambda: nodes[2] in cluster.rows(uid, RACK), "the third node to join")
        cluster.until_ready()
    after = cluster.rows(uid, RACK)
    assert {node: after[node] for node in before} == before
    assert sorted(after) == nodes
    (clique,) = cluster.cliques().values()
    assert clique.slots == 4  # nvidia-imex of the first nodes has read its list of nodes


def test_rows_follow_pods(cluster: Cluster) -> None:
    node, lost = cluster.node("node-0", RACK), cluster.node("node-1", RACK)
    uid, other = cluster.domain(), cluster.domain("other")
    with at_work(cluster.client):
        for one in (node, lost):
            cluster.claim(uid, one)
        cluster.until_ready()
        indices = cluster.rows(uid, RACK)

        def address() -> str:
            members = cluster.cliques()[clique_name(uid, RACK)].members
            return next((one.address for one in members if one.node == node), "")

        cluster.pod(other, node)  # of another domain: no row
        newer = cluster.pod(uid, node)
        wait_for(lambda: address() == newer["status"]["podIP"], "the newest pod to count")
        assert cluster.rows(uid, RACK) == indices
        reports = {one.node: one.report for one in cluster.cliques()[clique_name(uid, RACK)].members}
        assert reports == {node: DaemonReport(), lost: READY}, "what the other pod reported does not count"
        cluster.client.patch(
            PODS,
            newer["metadata"]["name"],
            {"status": {"podIP": "10.9.9.9"}},
            namespace=NAMESPACE,
            subresource="status",
        )
        wait_for(lambda: address() == "10.9.9.9", "the new address")
        cluster.client.delete(NODES, lost)
        wait_for(lambda: set(cluster.rows(uid, RACK)) == {node}, "the node that is gone to leave")
        cluster.client.create(NODES, {"metadata": {"name": lost}})
        cluster.until(lambda: cluster.rows(uid, RACK) == indices, "the node to return with its index")


def test_more_nodes_than_slots_are_named(cluster: Cluster) -> None:
    uid = cluster.domain()
    nodes = [cluster.node(f"node-{number}", RACK) for number in range(2)]
    with at_work(cluster.client, replace(SETTINGS, most_nodes=1)):
        for node in nodes:
            cluster.claim(uid, node)
        cluster.until_ready()
        late = cluster.node("node-late", RACK)
        cluster.claim(uid, late)
        cluster.until(lambda: cluster.condition("DaemonsReady")[1] == "TooManyNodes", "the condition")
        message = cluster.condition("DaemonsReady")[2]
        assert "node-late: clique c0ffee.1 has 2 daemons in 2 slots" in message
        assert "--max-nodes-per-imex-domain" in message


def test_reason_why_a_daemon_cannot_start_is_reported(cluster: Cluster) -> None:
    nodes = [cluster.node(f"node-{number}", RACK) for number in range(2)]
    uid = cluster.domain(nodes=3)
    waiting = {"reason": "ImagePullBackOff", "message": "no such image"}
    container = {
        "name": "c",
        "image": "a",
        "imageID": "",
        "ready": False,
        "restartCount": 0,
        "state": {"waiting": waiting},
    }
    cluster.trouble[nodes[0]] = {"phase": "Pending", "containerStatuses": [container]}
    failed = DaemonReport(False, "", "", "port 50000 is in use: stop nvidia-imex.service")
    cluster.report = lambda node: failed if node == nodes[1] else READY
    with at_work(cluster.client):
        claims = [cluster.claim(uid, node) for node in nodes]
        said = "2 of 2 nodes are not ready: node-0: pod computedomain-"  # at first, one of them may be known

        def is_told() -> bool:
            _, reason, message = cluster.condition("DaemonsReady")
            return reason == "ImagePullFailed" and message.startswith(said)

        cluster.until(is_told, "the image's condition")
        wait_for(lambda: len(cluster.events("ImagePullFailed")) == 2, "events on the domain and on the claim")
        told = {one["involvedObject"]["name"] for one in cluster.events("ImagePullFailed")}
        assert told == {"train", claims[0]["metadata"]["name"]}
        cluster.trouble.clear()
        for pod in cluster.pods():
            cluster.client.delete(PODS, pod["metadata"]["name"], NAMESPACE)
        cluster.until(lambda: cluster.condition("DaemonsReady")[1] == "ImexFailed", "the daemon's own message")
        assert "node-1: port 50000 is in use" in cluster.condition("DaemonsReady")[2]
        cluster.report = lambda _: DaemonReport(True, "READY", "DEGRADED", "node-1 is not connected")
        cluster.until(lambda: cluster.condition("DomainUp")[1] == "NotConnected", "a domain that is apart")
        since = cluster.status()["conditions"]
        cluster.report = lambda _: READY
        cluster.until(lambda: cluster.condition("DomainUp")[1] == "WaitingForNodes", "the third node")
        assert cluster.condition("DomainUp")[2] == "2 of 3 nodes (spec.numNodes) have claims"
        times = [one["lastTransitionTime"] for one in cluster.status()["conditions"]]
        assert times == [one["lastTransitionTime"] for one in since]
        cluster.claim(uid, cluster.node("node-2", RACK))
        cluster.until_ready()


def test_without_a_service_account_nothing_is_made_for_daemons(cluster: Cluster) -> None:
    cluster.client.delete(SERVICE_ACCOUNTS, ACCOUNT, NAMESPACE)
    with at_work(cluster.client):
        uid = cluster.domain()
        wait_for(lambda: cluster.condition("DaemonsReady")[1] == "ServiceAccountMissing", "the condition")
        assert cluster.condition("TemplateCreated")[0] == "True"
        assert cluster.get(DAEMON_SETS, daemon_name(uid)) is None


def test_uninstalled_driver_leaves_no_objects(cluster: Cluster) -> None:
    node = cluster.node("node-0", RACK)
    uid = cluster.domain()
    with at_work(cluster.client):
        cluster.claim(uid, node)
        cluster.until_ready()
        cluster.client.delete(SERVICE_ACCOUNTS, ACCOUNT, NAMESPACE)
        wait_for(lambda: cluster.condition("DaemonsReady")[1] == "ServiceAccountMissing", "the condition")

        def objects() -> list[JSON]:
            kinds = (DAEMON_SETS, TEMPLATES, NETWORK_POLICIES, CLIQUES)
            return [one for kind in kinds for one in cluster.client.list(kind, namespace=NAMESPACE).items]

        wait_for(lambda: not objects(), "the objects to go with their owner")
    cluster.client.delete(COMPUTE_DOMAINS, "train", "ml")
    wait_for(lambda: not cluster.get(TEMPLATES, "train-channel", "ml"), "the template to go with its owner")


def test_daemons_get_what_the_flags_say(cluster: Cluster) -> None:
    definition = {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": "certificates.cert-manager.io"},
        "spec": {
            "group": "cert-manager.io",
            "scope": "Namespaced",
            "names": {"kind": "Certificate", "plural": "certificates"},
            "versions": [{"name": "v1", "served": True, "storage": True, "schema": {"openAPIV3Schema": ANY}}],
        },
    }
    settings = replace(SETTINGS, pull_secrets=("a", "b"), most_nodes=3, issuer=("Issuer", "ca"), log_level=4)
    with at_work(cluster.client, settings):
        uid = cluster.domain()
        wait_for(lambda: cluster.condition("DaemonsReady")[1] == "WriteFailed", "cert-manager to be missed")
        assert "certificates" in cluster.condition("DaemonsReady")[2]
        cluster.client.create(DEFINITIONS, definition)
        wait_for(lambda: cluster.get(CERTIFICATES, daemon_name(uid)), "the certificate")
        wait_for(lambda: cluster.get(DAEMON_SETS, daemon_name(uid)), "the DaemonSet")
        certificate = cluster.client.get(CERTIFICATES, daemon_name(uid), NAMESPACE)["spec"]
        assert certificate["dnsNames"] == [host_name(uid, index) for index in range(3)]
        daemon_set = cluster.client.get(DAEMON_SETS, daemon_name(uid), NAMESPACE)["spec"]
    assert daemon_set["updateStrategy"] == {
        "type": "RollingUpdate",
        "rollingUpdate": {"maxUnavailable": 1, "maxSurge": 0},
    }
    pod = daemon_set["template"]["spec"]
    (container,) = pod["containers"]
    assert pod["imagePullSecrets"] == [{"name": "a"}, {"name": "b"}]
    assert (pod["nodeSelector"], pod["tolerations"]) == ({DOMAIN_LABEL: uid}, [{"operator": "Exists"}])
    assert pod["volumes"][0] == {"name": "state", "emptyDir": {}}
    assert pod["volumes"][1]["secret"]["secretName"] == certificate["secretName"]
    assert container["securityContext"]["readOnlyRootFilesystem"] is True
    assert container["volumeMounts"] == [
        {"name": "state", "mountPath": "/var/run/nvidia-imex"},
        {"name": "tls", "mountPath": "/imexd-tls", "readOnly": True},
    ]
    values = {one["name"]: one["value"] for one in container["env"] if "value" in one}
    expected = {"LOG_VERBOSITY": "4", "IMEX_ENABLE_AUTH_ENCRYPTION": "1", "HTTP_ENDPOINT": ":8080"}
    assert values == {**expected, "NVIDIA_VISIBLE_DEVICES": "void"}
    flags = {parameter.envvar for parameter in imex_daemon.params} | {"POD_NAME", "NVIDIA_VISIBLE_DEVICES"}
    assert {one["name"] for one in container["env"]} <= flags, "each variable is one of the daemon's"


def test_host_managed_domains_have_only_a_template(cluster: Cluster) -> None:
    node = cluster.node("node-0", RACK)
    with at_work(cluster.client, replace(SETTINGS, host_managed=True, image="")):
        uid = cluster.domain()
        cluster.claim(uid, node)
        wait_for(lambda: cluster.status().get("status") == "Ready", "the status")
        assert cluster.condition("DomainUp")[:2] == ("True", "HostManaged")
        assert cluster.get(DAEMON_SETS, daemon_name(uid)) is None
        assert cluster.labels() == {}


def test_controller_waits_for_the_definitions(
    served: tuple[FaultyServer, ApiClient], caplog: pytest.LogCaptureFixture
) -> None:
    _, client = served
    with at_work(client) as work:
        wait_for(lambda: "the API server has no ComputeDomains" in caplog.text, "the warning")
        wait_for(lambda: work.problem is None, "all else to be listed")
        cluster = Cluster(client).install()
        uid = cluster.domain()
        wait_for(lambda: cluster.get(DAEMON_SETS, daemon_name(uid)), "the DaemonSet")
    assert caplog.text.count("the API server has no ComputeDomains") == 1

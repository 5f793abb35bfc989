# SPDX-License-Identifier: Apache-2.0
"""ComputeDomains: the time from the first pod to the last one that runs, and the requests to the API server.

    python -m tests.bench.domains [--nodes 18] [--runs 3] [--domains 100]

Three parts, each with an embedded API server:

- a cold start in a sandbox, with the real processes of all nodes, a simulated nvidia-imex, and stand-ins for kubelets,
  scheduler and DaemonSet controller: everything that happens until the pods run;
- the same without kubelets, scheduler and nvidia-imex, and with threads in place of the processes on nodes. So only the
  requests of the driver remain. They are those of this driver, with its real cluster controller, or those of NVIDIA's
  driver, as its code sends them: plugins label their nodes and ask for the clique until their node is ready, daemons
  label their pods and write themselves into the clique, with retries after conflicts, and the controller writes the
  status every two seconds;
- the second part with many domains of two nodes each at the same time.

An API server, its clients and, in the first part, all nodes share one machine: compare ratios.
"""

import argparse
import multiprocessing
import multiprocessing.connection
import os
import random
import statistics
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, Final

from aiohttp import web

from dra_driver.domains.names import CLIQUE_LABEL, DOMAIN_LABEL, DRIVER, clique_name, daemon_name
from dra_driver.domains.objects import CLIQUES, COMPUTE_DOMAINS, DaemonReport, decode_clique, encode_report
from dra_driver.domains.template import channel_claim
from dra_driver.kube.api import ApiClient, ApiError, ConflictError, Connection, Watcher, load_credentials
from dra_driver.kube.kinds import DAEMON_SETS, NODES, PODS
from dra_driver.kube.resource.codec import V1, encode_claim_spec
from dra_driver.sandbox.apiserver import ApiServer, ApiServerOptions
from dra_driver.sandbox.apiserver.http.paths import target_of
from dra_driver.sandbox.computedomains import NAMESPACE, ClusterProcesses, install
from dra_driver.sandbox.loop import CLAIMS, SLICES, TEMPLATES
from tests.support import preloaded
from tests.support.domains import CLUSTER_UUID, domains_running
from tests.support.waiting import wait_for

JSON = dict[str, Any]
CLIQUE: Final = f"{CLUSTER_UUID}.1"
STATUS_SECONDS: Final = 2.0
"""The period of the status loop of NVIDIA's controller."""
POLL: Final = (0.25, 3.0)
"""The first and the longest pause of its plugins between two attempts."""
RETRY: Final = (0.005, 6.0)
"""The same of its daemons after a conflict, with half of it as jitter."""


class Requests:
    """Counts the requests to the API servers of this process, by the agent and what it asks for."""

    def __init__(self) -> None:
        self.counted: Counter[tuple[str, str]] = Counter()
        answer = ApiServer.answer

        async def counting(server: ApiServer, request: web.BaseRequest) -> web.StreamResponse:
            target, agent = target_of(request), request.headers.get("User-Agent", "")
            self.counted[agent.partition("/")[0], f"{target.verb} {target.resource}"] += 1
            return await answer(server, request)

        ApiServer.answer = counting  # type: ignore[assignment, method-assign]


def cold_start(nodes: int, requests: Requests) -> tuple[float, Counter[tuple[str, str]]]:
    """Seconds from the first pod to the last that runs, in a sandbox, and the requests until then."""
    with domains_running(nodes, max(1, nodes // 2)) as domains:
        requests.counted.clear()
        began = time.perf_counter()
        domains.run("bench", *range(1, nodes + 1))
        return time.perf_counter() - began, Counter(requests.counted)


class Server:
    """An API server in a process of its own, which counts its requests."""

    def __init__(self, folder: Path) -> None:
        self.kubeconfig = folder / "kubeconfig"
        context = multiprocessing.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(target=_serve, args=(theirs, self.kubeconfig), daemon=True)
        self._process.start()
        self._pipe.recv()

    def counted(self) -> Counter[tuple[str, str]]:
        """The requests since the last call."""
        self._pipe.send("counted")
        found: Counter[tuple[str, str]] = self._pipe.recv()
        return found

    def stop(self) -> None:
        self._process.kill()
        self._process.join()


def _serve(pipe: "multiprocessing.connection.Connection", kubeconfig: Path) -> None:
    requests = Requests()
    with ApiServer(ApiServerOptions()) as server:
        server.write_kubeconfig(kubeconfig)
        pipe.send("ready")
        while pipe.recv():
            pipe.send(Counter(requests.counted))
            requests.counted.clear()


@contextmanager
def cluster(nodes: int) -> Iterator[tuple[Server, ApiClient]]:
    """An API server with nodes in one clique, and with the kinds and the account of domains."""
    with ExitStack() as stack:
        server = Server(Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="dra-"))))
        stack.callback(server.stop)
        client = stack.enter_context(connected(server.kubeconfig, "bench"))
        install(client)
        for number in range(nodes):
            name = f"node-{number}"
            client.create(NODES, {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}})
            attributes = {
                "type": {"string": "channel"},
                "id": {"int": 0},
                "gpu.nvidia.com/fabricClique": {"string": CLIQUE},
            }
            pool = {"name": name, "generation": 1, "resourceSliceCount": 1}
            devices = [{"name": "channel-0", "attributes": attributes, "allowMultipleAllocations": True}]
            spec = {"driver": DRIVER, "nodeName": name, "pool": pool, "devices": devices}
            value = {"apiVersion": V1.api_version, "kind": "ResourceSlice", "metadata": {"name": name}, "spec": spec}
            client.create(SLICES, value)
        yield server, client


@contextmanager
def connected(kubeconfig: Path, agent: str, connections: int = 32) -> Iterator[ApiClient]:
    with Connection(load_credentials(str(kubeconfig)), f"{agent}/bench", connections=connections) as connection:
        yield ApiClient(connection)


def create_domain(client: ApiClient, name: str) -> str:
    spec = {"channel": {"resourceClaimTemplate": {"name": name}}}
    meta = {"name": name}
    value = {"apiVersion": COMPUTE_DOMAINS.api_version, "kind": "ComputeDomain", "metadata": meta, "spec": spec}
    return str(client.create(COMPUTE_DOMAINS, value, "default")["metadata"]["uid"])


def run_daemon_pod(client: ApiClient, uid: str, node: str, address: str) -> str:
    """Do what DaemonSet controller, scheduler and kubelet do, in two requests. The pod's name."""
    name = f"{daemon_name(uid)}-{node}"
    container = {"name": "c", "image": "i"}
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "labels": {DOMAIN_LABEL: uid}},
        "spec": {"nodeName": node, "containers": [container]},
    }
    client.create(PODS, pod, NAMESPACE)
    client.patch(
        PODS, name, {"status": {"podIP": address, "phase": "Running"}}, namespace=NAMESPACE, subresource="status"
    )
    return name


def allocate_claim(client: ApiClient, uid: str, name: str, node: str) -> None:
    """Do what kube-controller-manager and the scheduler do for the claim of a worker, in two requests."""
    claim = {
        "apiVersion": V1.api_version,
        "kind": "ResourceClaim",
        "metadata": {"name": name},
        "spec": encode_claim_spec(channel_claim(uid, all_channels=False), V1),
    }
    made = client.create(CLAIMS, claim, "default")
    result = {"request": "channel", "driver": DRIVER, "pool": node, "device": "channel-0"}
    config = [{"source": "FromClaim", **one} for one in made["spec"]["devices"]["config"]]
    made["status"] = {"allocation": {"devices": {"results": [result], "config": config}}}
    client.update(CLAIMS, made, subresource="status")


def address_of(number: int) -> str:
    return f"10.0.{number // 250}.{number % 250 + 1}"


class Labels:
    """The labels of nodes, as the DaemonSet controller sees them."""

    def __init__(self, client: ApiClient) -> None:
        self._changed = threading.Condition()
        self._known: dict[str, str] = {}
        self._watcher = Watcher(client, NODES, on_list=lambda _: None, on_event=lambda _, value: self._take(value))
        self._watcher.start()

    def wait(self, node: str, uid: str) -> None:
        """Wait until the node has the label of the domain."""
        with self._changed:
            self._changed.wait_for(lambda: self._known.get(node) == uid)

    def stop(self) -> None:
        self._watcher.stop()

    def _take(self, value: JSON) -> None:
        with self._changed:
            self._known[value["metadata"]["name"]] = (value["metadata"].get("labels") or {}).get(DOMAIN_LABEL, "")
            self._changed.notify_all()


class CliqueWatch:
    """The watch of a daemon on its clique. `latest` is the object as the daemon knows it."""

    def __init__(self, client: ApiClient, uid: str) -> None:
        self.latest: JSON = {}
        self._changed = threading.Condition()
        self._watcher = Watcher(
            client,
            CLIQUES,
            namespace=NAMESPACE,
            field_selector=f"metadata.name={clique_name(uid, CLIQUE)}",
            on_list=lambda values: self._take(values[0] if values else {}),
            on_event=lambda _, value: self._take(value),
        )
        self._watcher.start()

    def wait(self, is_so: Callable[[JSON], bool]) -> None:
        with self._changed:
            self._changed.wait_for(lambda: bool(self.latest) and is_so(self.latest))

    def stop(self) -> None:
        self._watcher.stop()

    def _take(self, value: JSON) -> None:
        with self._changed:
            self.latest = value
            self._changed.notify_all()


class Ours:
    """This driver: the real cluster controller, and what plugins and daemons request."""

    def __init__(self, kubeconfig: Path, client: ApiClient, stack: ExitStack) -> None:
        self._client = client
        self.plugin = stack.enter_context(connected(kubeconfig, "plugin"))
        self.daemon = stack.enter_context(connected(kubeconfig, "daemon", 512))
        lock = os.open(kubeconfig, os.O_RDONLY)
        stack.callback(os.close, lock)
        stack.enter_context(preloaded.one_parent())
        self._processes = ClusterProcesses(kubeconfig.parent / "logs", kubeconfig, preloaded.children(lock))
        stack.callback(self._processes.stop)
        self._processes.start_controller()
        self._labels = Labels(client)
        stack.callback(self._labels.stop)

    def run(self, uid: str, name: str, number: int) -> None:
        """From an allocated claim to a worker that may start, on one node."""
        node = f"node-{number}"
        allocate_claim(self._client, uid, f"{name}-{node}", node)
        self.plugin.list(COMPUTE_DOMAINS, namespace="default")  # the plugin's only request; then it reads a file
        self._labels.wait(node, uid)
        run_daemon_pod(self._client, uid, node, address_of(number))
        seen = CliqueWatch(self.daemon, uid)
        seen.wait(lambda value: decode_clique(value).row(node) is not None)
        name = clique_name(uid, CLIQUE)
        while True:
            row = f"/daemons/{decode_clique(seen.latest).row(node)}"
            fields = encode_report(DaemonReport(True, "READY", "UP"))
            patch: list[JSON] = [{"op": "test", "path": f"{row}/nodeName", "value": node}]
            patch += [{"op": "replace", "path": f"{row}/{key}", "value": value} for key, value in fields.items()]
            try:
                self.daemon.json_patch(CLIQUES, name, patch, namespace=NAMESPACE)
                break
            except ApiError:  # the row has moved
                time.sleep(0.05)
        seen.stop()


class Theirs:
    """NVIDIA's driver v0.5: the requests of its processes. Reads that its informers answer are not requests."""

    def __init__(self, kubeconfig: Path, client: ApiClient, stack: ExitStack) -> None:
        self._client = client
        self.plugin = stack.enter_context(connected(kubeconfig, "plugin"))
        self.daemon = stack.enter_context(connected(kubeconfig, "daemon", 512))
        self._controller = stack.enter_context(connected(kubeconfig, "dra-cluster-controller"))
        self._stop = threading.Event()
        self._domains: dict[str, str] = {}
        thread = threading.Thread(target=self._write_status, daemon=True)
        thread.start()
        stack.callback(thread.join)
        stack.callback(self._stop.set)

    def run(self, uid: str, name: str, number: int) -> None:
        node = f"node-{number}"
        if uid not in self._domains:
            self._domains[uid] = name
            self._create_objects(uid, name)
        allocate_claim(self._client, uid, f"{name}-{node}", node)
        labels = {"metadata": {"labels": {DOMAIN_LABEL: uid}}}
        self.plugin.patch(NODES, node, labels)
        daemon = threading.Thread(target=self._daemon, args=(uid, node, number))
        daemon.start()
        pause = POLL[0]
        while not self._is_ready(uid, node):
            time.sleep(pause)
            pause = min(pause * 2, POLL[1])
        daemon.join()

    def _create_objects(self, uid: str, name: str) -> None:
        value = self._controller.get(COMPUTE_DOMAINS, name, "default")
        value["metadata"]["finalizers"] = [DOMAIN_LABEL]
        self._controller.update(COMPUTE_DOMAINS, value)
        spec = {"spec": encode_claim_spec(channel_claim(uid, all_channels=False), V1)}
        for namespace, object_name in ((NAMESPACE, daemon_name(uid)), ("default", name)):
            meta = {"name": object_name, "labels": {DOMAIN_LABEL: uid}}
            template = {"apiVersion": V1.api_version, "kind": "ResourceClaimTemplate", "metadata": meta, "spec": spec}
            self._controller.create(TEMPLATES, template, namespace)
        pod = {"metadata": {"labels": {DOMAIN_LABEL: uid}}, "spec": {"containers": [{"name": "c", "image": "i"}]}}
        self._controller.create(
            DAEMON_SETS,
            {
                "apiVersion": DAEMON_SETS.api_version,
                "kind": "DaemonSet",
                "metadata": {"name": daemon_name(uid)},
                "spec": {"selector": {"matchLabels": {DOMAIN_LABEL: uid}}, "template": pod},
            },
            NAMESPACE,
        )

    def _is_ready(self, uid: str, node: str) -> bool:
        """One attempt of the plugin: a GET of the clique."""
        try:
            found = decode_clique(self.plugin.get(CLIQUES, clique_name(uid, CLIQUE), NAMESPACE))
        except ApiError:
            return False
        return any(row.node == node and row.report.ready for row in found.members)

    def _daemon(self, uid: str, node: str, number: int) -> None:
        pod = run_daemon_pod(self._client, uid, node, address_of(number))
        labels = {"metadata": {"labels": {CLIQUE_LABEL: CLIQUE}}}
        self.daemon.patch(PODS, pod, labels, namespace=NAMESPACE)
        name, seen = clique_name(uid, CLIQUE), CliqueWatch(self.daemon, uid)
        meta = {"name": name, "labels": {DOMAIN_LABEL: uid, CLIQUE_LABEL: CLIQUE}}
        empty = {"apiVersion": CLIQUES.api_version, "kind": "ComputeDomainClique", "metadata": meta, "daemons": []}
        with suppress(ConflictError):  # it exists
            self.daemon.create(CLIQUES, empty, NAMESPACE)
        seen.wait(bool)
        self._write_row(seen, node, number, "NotReady")
        self._write_row(seen, node, number, "Ready")  # once its own pod is ready
        seen.stop()

    def _write_row(self, seen: "CliqueWatch", node: str, number: int, status: str) -> None:
        pause = RETRY[0]
        while True:
            value = seen.latest
            rows = value.get("daemons") or []
            own = next((row for row in rows if row["nodeName"] == node), None)
            if own is None:
                used = {row["index"] for row in rows}
                index = next(one for one in range(len(rows) + 1) if one not in used)
                own = {"nodeName": node, "ipAddress": address_of(number), "cliqueID": CLIQUE, "index": index}
            others = [row for row in rows if row["nodeName"] != node]
            try:
                seen.latest = self.daemon.update(CLIQUES, {**value, "daemons": [*others, {**own, "status": status}]})
                return
            except ConflictError:
                time.sleep(pause * random.uniform(1.0, 1.5))
                pause = min(pause * 2, RETRY[1])

    def _write_status(self) -> None:
        written: dict[str, JSON] = {}
        while not self._stop.wait(STATUS_SECONDS):
            for uid, name in list(self._domains.items()):
                found = self._client.list(CLIQUES, label_selector=f"{DOMAIN_LABEL}={uid}").items  # its informer's
                nodes = [
                    {"name": row["nodeName"], **{key: row[key] for key in ("ipAddress", "cliqueID", "index", "status")}}
                    for one in found
                    for row in one.get("daemons") or ()
                ]
                ready = all(one["status"] == "Ready" for one in nodes)
                status = {"status": "Ready" if ready else "NotReady", "nodes": nodes}
                if status != written.get(uid):
                    value = self._controller.get(COMPUTE_DOMAINS, name, "default")
                    self._controller.update(COMPUTE_DOMAINS, {**value, "status": status}, subresource="status")
                    written[uid] = status


def protocol(
    driver: Callable[[Path, ApiClient, ExitStack], Ours | Theirs], domains: int, nodes: int
) -> tuple[list[float], Counter[tuple[str, str]]]:
    """Seconds until the last node of each domain is ready, and the requests of all of them."""
    with ExitStack() as stack:
        server, client = stack.enter_context(cluster(domains * nodes))
        running = driver(server.kubeconfig, client, stack)
        wait_for(lambda: client.list(SLICES).items, "the slices")
        time.sleep(2)  # for the controller to lead
        server.counted()
        began = time.perf_counter()

        def domain(number: int) -> float:
            uid = create_domain(client, f"domain-{number}")
            with ThreadPoolExecutor(nodes) as pool:
                own = range(number * nodes, (number + 1) * nodes)
                list(pool.map(lambda one: running.run(uid, f"domain-{number}", one), own))
            return time.perf_counter() - began

        with ThreadPoolExecutor(domains) as pool:
            taken = list(pool.map(domain, range(domains)))
        return taken, server.counted()


def show(title: str, seconds: list[float], counted: Counter[tuple[str, str]], nodes: int) -> None:
    agents = Counter[str]()
    for (agent, _), count in counted.items():
        agents[agent] += count
    print(f"{title}: median {statistics.median(seconds):.2f} s, longest {max(seconds):.2f} s")
    for agent in (
        "dra-kubeletplugin",
        "plugin",
        "dra-imex-daemon",
        "daemon",
        "dra-controller",
        "dra-cluster-controller",
    ):
        if agents[agent]:
            each = Counter({what: count for (name, what), count in counted.items() if name == agent})
            told = ", ".join(f"{count} {what}" for what, count in each.most_common(6))
            print(f"  {agent}: {agents[agent] / nodes:.1f} requests for each node ({told})")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--nodes", type=int, default=18)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--domains", type=int, default=100)
    given = parser.parse_args()
    for name, driver in (("this driver", Ours), ("NVIDIA's driver", Theirs)):
        runs = [protocol(driver, 1, given.nodes) for _ in range(given.runs)]
        seconds = [one for taken, _ in runs for one in taken]
        show(f"requests only, {given.nodes} nodes, {name}", seconds, runs[-1][1], given.nodes)
        if given.domains:
            taken, counted = protocol(driver, given.domains, 2)
            show(f"requests only, {given.domains} domains of 2 nodes, {name}", taken, counted, given.domains * 2)
    if given.runs:
        requests = Requests()
        starts = [cold_start(given.nodes, requests) for _ in range(given.runs)]
        show(f"cold start in a sandbox, {given.nodes} nodes", [one for one, _ in starts], starts[-1][1], given.nodes)


if __name__ == "__main__":
    main()

# SPDX-License-Identifier: Apache-2.0
"""The official Python client, as anybody would use it."""

import importlib
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.faultyserver import FaultyServer


@pytest.fixture(scope="module")
def library() -> Any:
    """The package, untyped, as its annotations are partial. Not at the top: every worker would load it."""
    for part in ("dynamic", "informer"):
        importlib.import_module(f"kubernetes.{part}")
    return importlib.import_module("kubernetes")


@pytest.fixture
def client(library: Any) -> Any:
    return library.client


@pytest.fixture
def connection(library: Any, kubeconfig: Path) -> Iterator[Any]:
    with library.config.new_client_from_config(str(kubeconfig)) as made:
        yield made


def slice_of(client: Any, name: str, generation: int = 1) -> Any:
    return client.V1ResourceSlice(
        metadata=client.V1ObjectMeta(name=name),
        spec=client.V1ResourceSliceSpec(
            driver="gpu.nvidia.com",
            node_name="node-1",
            pool=client.V1ResourcePool(name="node-1", generation=generation, resource_slice_count=1),
            devices=[client.V1Device(name="gpu-0", attributes={"uuid": client.V1DeviceAttribute(string="GPU-1")})],
        ),
    )


def test_objects_are_made_changed_and_deleted(client: Any, connection: Any) -> None:
    api = client.ResourceV1Api(connection)
    made = api.create_resource_slice(slice_of(client, "python"))
    assert made.spec.devices[0].attributes["uuid"].string == "GPU-1"
    made.spec.pool.generation = 2
    changed = api.replace_resource_slice("python", made)
    assert (changed.spec.pool.generation, changed.metadata.generation) == (2, 2)
    with pytest.raises(client.ApiException) as conflict:
        api.replace_resource_slice("python", made)
    assert conflict.value.status == 409
    listed = api.list_resource_slice(field_selector="spec.nodeName=node-1,spec.driver=gpu.nvidia.com")
    assert [item.metadata.name for item in listed.items] == ["python"]
    api.delete_resource_slice("python")
    with pytest.raises(client.ApiException) as missing:
        api.read_resource_slice("python")
    assert missing.value.status == 404


def test_a_watch_goes_on_where_the_list_ended(library: Any, client: Any, connection: Any) -> None:
    api = client.CoreV1Api(connection)
    revision = api.list_namespaced_config_map("default").metadata.resource_version
    api.create_namespaced_config_map("default", client.V1ConfigMap(metadata=client.V1ObjectMeta(name="watched")))
    stream = library.watch.Watch()
    for event in stream.stream(api.list_namespaced_config_map, "default", resource_version=revision):
        assert (event["type"], event["object"].metadata.name) == ("ADDED", "watched")
        stream.stop()


def test_an_informer_keeps_up_through_broken_watches(
    server: FaultyServer, library: Any, client: Any, connection: Any
) -> None:
    api = client.CoreV1Api(connection)
    informer = library.informer.SharedInformer(api.list_namespaced_secret, namespace="default")
    seen: dict[str, threading.Event] = {name: threading.Event() for name in ("one", "two")}

    def notice(secret: Any) -> None:
        name = secret["metadata"]["name"] if isinstance(secret, dict) else secret.metadata.name
        if name in seen:
            seen[name].set()

    informer.add_event_handler("ADDED", notice)
    informer.start()
    try:
        api.create_namespaced_secret("default", client.V1Secret(metadata=client.V1ObjectMeta(name="one")))
        assert seen["one"].wait(60)
        server.drop_watches("secrets")
        api.create_namespaced_secret("default", client.V1Secret(metadata=client.V1ObjectMeta(name="two")))
        assert seen["two"].wait(60)
    finally:
        informer.stop()


def test_the_dynamic_client_applies_server_side(library: Any, connection: Any) -> None:
    deployments = library.dynamic.DynamicClient(connection).resources.get(api_version="apps/v1", kind="Deployment")
    spec = {
        "selector": {"matchLabels": {"app": "a"}},
        "template": {
            "metadata": {"labels": {"app": "a"}},
            "spec": {"containers": [{"name": "a", "image": "a:1"}]},
        },
    }
    body = {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "dynamic"}, "spec": spec}
    applied = deployments.server_side_apply(body=body, namespace="default", field_manager="tests")
    assert applied.spec.replicas == 1
    assert applied.metadata.managedFields[0].manager == "tests"

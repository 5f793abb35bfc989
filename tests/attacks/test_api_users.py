# SPDX-License-Identifier: Apache-2.0
"""A user who may create claims in one namespace attacks the processes that read all claims of the cluster."""

import json
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from controller.cluster.collection import Collection
from controller.cluster.domains.facts import stored_facts
from controller.cluster.facts import ClaimFacts, claim_facts, only_allocation
from controller.webhook.review import answer
from dra_driver.config import API_VERSION
from dra_driver.domains.names import DRIVER
from dra_driver.kube.api import ApiClient, Connection, Credentials, load_credentials
from dra_driver.kube.api.answers import decode_answer
from dra_driver.kube.kinds import claims_of, templates_of
from dra_driver.kube.resource.codec import V1, decode_claim
from kubeletplugin.claims.model import ClaimRef
from kubeletplugin.errors import PrepareError
from kubeletplugin.features.domain.plan import requested
from tests.support.apiserver import ASSETS
from tests.support.scripted import Reply, scripted
from tests.support.waiting import wait_for

DOMAIN = "6a1b1f34-0000-4000-8000-000000000001"
_KIND = f'"apiVersion": "{API_VERSION}", "kind": "ComputeDomainChannelConfig", "domainID": "{DOMAIN}"'
PARAMETERS: dict[str, str] = {
    "deep": '{"a": ' + "[" * 5_000 + "]" * 5_000 + "}",
    "deep objects": '{"a": ' * 1_400 + "1" + "}" * 1_400,
    "long number": '{"a": ' + "9" * 300 + "}",
    "long fraction": '{"a": 0.' + "1" * 9_000 + "}",
    "small number": '{"a": 1e-9999}',
    "surrogate": f'{{{_KIND}, "\\ud800": "\\ud800"}}',
    "control characters": f'{{{_KIND}, "\\u0000\\u001b[2J": "\\n"}}',
    "long name": f'{{{_KIND}, "{"a" * 9_000}": 1}}',
    "path": f'{{"apiVersion": "{API_VERSION}", "kind": "ComputeDomainChannelConfig", "domainID": "../../../etc"}}',
    "wrong types": f'{{"apiVersion": ["{API_VERSION}"], "kind": {{"a": 1}}, "domainID": {{}}}}',
    "many fields": json.dumps({str(number): number for number in range(700)}),
    "empty": "{}",
}
"""Opaque parameters of at most 10 KiB that an API server accepts."""


def claim(name: str, parameters: str) -> str:
    """An allocated claim with a channel, as an API server sends it."""
    config = f'[{{"source": "FromClaim", "opaque": {{"driver": "{DRIVER}", "parameters": {parameters}}}}}]'
    result = {"request": "channel", "driver": DRIVER, "pool": "a", "device": "channel-0"}
    allocation = f'{{"devices": {{"results": [{json.dumps(result)}], "config": {config}}}}}'
    meta = {"name": name, "namespace": "default", "uid": f"uid-{name}", "resourceVersion": "7"}
    return f'{{"metadata": {json.dumps(meta)}, "spec": {{}}, "status": {{"allocation": {allocation}}}}}'


HONEST = claim("honest", f"{{{_KIND}}}")


@pytest.mark.parametrize("what", PARAMETERS)
def test_a_hostile_claim_does_not_hide_the_claims_of_others(what: str) -> None:
    hostile = claim("hostile", PARAMETERS[what])
    listed = f'{{"metadata": {{"resourceVersion": "7"}}, "items": [{hostile}, {HONEST}]}}'
    later = claim("later", f"{{{_KIND}}}")
    events = [f'{{"type": "ADDED", "object": {one}}}\n'.encode() for one in (hostile, later)]
    replies = [Reply(listed.encode()), Reply(events)]
    with scripted(replies) as server, Connection(Credentials(server.url, lambda: None), "tests") as connection:
        view: Collection[ClaimFacts] = Collection(
            ApiClient(connection),
            claims_of(V1),
            partial(claim_facts, drivers=[DRIVER]),
            lambda _: None,
            keep=only_allocation,
        )
        view.watcher.start()
        wait_for(lambda: view.get("uid-later"), "the claim that was created after the hostile one")
        view.watcher.stop()
    devices, channels = (("a", "channel-0"),), (("a", DOMAIN),)
    assert view.get("uid-honest") == ClaimFacts("default", "honest", "uid-honest", devices, channels=channels)


@pytest.mark.parametrize("what", PARAMETERS)
def test_hostile_parameters_are_an_error_of_their_claim_with_a_short_text(what: str) -> None:
    value = decode_answer(claim("hostile", PARAMETERS[what]).encode())
    with pytest.raises(PrepareError) as raised:
        requested(ClaimRef("default", "hostile", "uid-hostile"), decode_claim(value, V1, strict=False), "a")
    text = str(raised.value)
    assert len(text) < 2_500
    assert text.encode()
    assert not set(text) & set("\0\x1b\n")


@pytest.mark.parametrize("what", PARAMETERS)
def test_the_webhook_refuses_hostile_parameters_with_a_short_text(what: str) -> None:
    config = f'[{{"opaque": {{"driver": "{DRIVER}", "parameters": {PARAMETERS[what]}}}}}]'
    claimed = f'{{"metadata": {{"name": "a"}}, "spec": {{"devices": {{"config": {config}}}}}}}'
    request = f'{{"uid": "1", "kind": {{"kind": "ResourceClaim"}}, "operation": "CREATE", "object": {claimed}}}'
    review = f'{{"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": {request}}}'
    response = answer(decode_answer(review.encode()))["response"]
    assert not response["allowed"] or what == "path"  # the plugin refuses it, and the webhook warns
    assert len(json.dumps(response)) < 3_500


@pytest.fixture
def connection(kubeconfig: Path) -> Iterator[Connection]:
    with Connection(load_credentials(str(kubeconfig)), "tests") as made:
        yield made


@pytest.mark.skipif(not ASSETS, reason="no KUBEBUILDER_ASSETS: the embedded API server refuses deep objects")
@pytest.mark.parametrize("what", PARAMETERS)
def test_a_real_api_server_accepts_hostile_parameters_and_all_claims_are_listed(
    what: str, client: ApiClient, connection: Connection
) -> None:
    kind, names = templates_of(V1), ("hostile", "honest")
    for name, parameters in zip(names, (PARAMETERS[what], f"{{{_KIND}}}"), strict=True):
        config = f'[{{"opaque": {{"driver": "{DRIVER}", "parameters": {parameters}}}}}]'
        request = '{"name": "a", "exactly": {"deviceClassName": "compute-domain-default-channel.nvidia.com"}}'
        spec = f'{{"spec": {{"devices": {{"requests": [{request}], "config": {config}}}}}}}'
        body = f'{{"apiVersion": "{V1.api_version}", "kind": "ResourceClaimTemplate", "metadata": {{"name": "{name}"}}'
        answered = connection.request(
            "POST", kind.path("default"), body=f'{body}, "spec": {spec}}}'.encode(), content_type="application/json"
        )
        assert answered.status == 201, answered.data[:500]
    found = client.list(kind, namespace="default").items
    assert {stored_facts(one).name for one in found} >= set(names)
    for name in names:
        client.delete(kind, name, "default")


def test_the_parameters_fit_into_an_object() -> None:
    sizes: dict[str, Any] = {what: len(text) for what, text in PARAMETERS.items() if len(text) > 10 * 1024}
    assert not sizes

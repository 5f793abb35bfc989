# SPDX-License-Identifier: Apache-2.0
"""Which objects the API server sends to the webhook: those with a configuration for this driver, no others."""

import base64
import copy
import functools
from collections.abc import Iterator
from pathlib import Path

import pytest

from controller.webhook.server import REVIEW_PATH, TlsFiles, serving
from dra_driver.kube.api import ApiClient, Kind, StatusError
from dra_driver.kube.kinds import classes_of
from dra_driver.kube.resource.codec import V1
from dra_driver.sandbox.apiserver.server import make_certificates
from tests.support.apiserver import ASSETS, CLAIMS
from tests.support.waiting import wait_for

from .cel import evaluate
from .rendering import JSON, find, render

CONFIGURATIONS = Kind("admissionregistration.k8s.io/v1", "validatingwebhookconfigurations")
CLASSES = classes_of(V1)


@functools.cache
def rendered() -> list[JSON]:
    """The objects with the webhook."""
    return render({"webhook": {"enabled": True}})


def webhooks() -> dict[str, JSON]:
    """Resource -> the webhook that reviews it."""
    configuration = find(rendered(), "ValidatingWebhookConfiguration")
    return {one["rules"][0]["resources"][0]: one for one in configuration["webhooks"]}


def config(driver: str, kind: str = "GpuConfig") -> JSON:
    parameters = {"apiVersion": "resource.nvidia.com/v1beta1", "kind": kind}
    return {"opaque": {"driver": driver, "parameters": parameters}}


OURS, THEIRS = config("gpu.nvidia.com"), config("other.example.com")


@pytest.mark.parametrize(
    ("resource", "spec", "sent"),
    [
        ("resourceclaims", {"devices": {"config": [THEIRS, OURS]}}, True),
        ("resourceclaims", {"devices": {"config": [THEIRS]}}, False),
        ("resourceclaims", {"devices": {"config": [{"requests": ["a"]}]}}, False),
        ("resourceclaims", {"devices": {}}, False),
        ("resourceclaims", {}, False),
        ("resourceclaimtemplates", {"spec": {"devices": {"config": [OURS]}}}, True),
        ("resourceclaimtemplates", {"spec": {"devices": {"config": [THEIRS]}}}, False),
        ("resourceclaimtemplates", {"spec": {}}, False),
        ("deviceclasses", {"config": [OURS]}, True),
        ("deviceclasses", {"config": [THEIRS]}, False),
        ("deviceclasses", {}, False),
    ],
)
def test_only_objects_with_a_configuration_for_this_driver_are_sent(resource: str, spec: JSON, sent: bool) -> None:
    (condition,) = webhooks()[resource]["matchConditions"]
    assert bool(evaluate(condition["expression"], {"object": {"spec": spec}})) == sent


def test_webhook_configuration_has_the_path_and_port_of_the_server() -> None:
    for one in webhooks().values():
        assert one["clientConfig"]["service"]["path"] == REVIEW_PATH
        service = find(rendered(), "Service")
        assert one["clientConfig"]["service"]["name"] == service["metadata"]["name"]
        assert one["clientConfig"]["service"]["port"] == service["spec"]["ports"][0]["port"]
        assert one["sideEffects"] == "None"


def test_the_certificate_is_for_the_name_that_the_api_server_uses() -> None:
    service = webhooks()["resourceclaims"]["clientConfig"]["service"]
    certificate = find(rendered(), "Certificate")
    assert certificate["spec"]["dnsNames"] == [f"{service['name']}.{service['namespace']}.svc"]
    pod = find(rendered(), "Deployment", "webhook")["spec"]["template"]["spec"]
    assert pod["volumes"][0]["secret"]["secretName"] == certificate["spec"]["secretName"]
    annotations = find(rendered(), "ValidatingWebhookConfiguration")["metadata"]["annotations"]
    meta = certificate["metadata"]
    assert annotations["cert-manager.io/inject-ca-from"] == f"{meta['namespace']}/{meta['name']}"


# By a real API server


@pytest.fixture
def registered(client: ApiClient, tmp_path: Path) -> Iterator[int]:
    """The rendered configuration, with a webhook in this process instead of the Service; gives its port."""
    made = make_certificates(["127.0.0.1"])
    (tmp_path / "tls.crt").write_bytes(made.certificate)
    (tmp_path / "tls.key").write_bytes(made.key)
    with serving(0, TlsFiles(tmp_path / "tls.crt", tmp_path / "tls.key")) as port:
        value = copy.deepcopy(find(rendered(), "ValidatingWebhookConfiguration"))
        for one in value["webhooks"]:
            authority = base64.b64encode(made.authority).decode()
            one["clientConfig"] = {"url": f"https://127.0.0.1:{port}{REVIEW_PATH}", "caBundle": authority}
        client.create(CONFIGURATIONS, value)
        yield port
        client.delete(CONFIGURATIONS, value["metadata"]["name"])


def claim(name: str, *configs: JSON) -> JSON:
    requests = [{"name": "gpu", "exactly": {"deviceClassName": "gpu.nvidia.com"}}]
    spec = {"devices": {"requests": requests, "config": list(configs)}}
    return {"apiVersion": CLAIMS.api_version, "kind": "ResourceClaim", "metadata": {"name": name}, "spec": spec}


@pytest.mark.skipif(not ASSETS, reason="no KUBEBUILDER_ASSETS: the embedded API server does not call webhooks")
def test_a_real_api_server_calls_the_webhook(client: ApiClient, registered: int) -> None:
    def refusal(value: JSON) -> str:
        try:
            client.create(CLAIMS, value, "default")
        except StatusError as error:
            return str(error)
        client.delete(CLAIMS, value["metadata"]["name"], "default")
        return ""

    mistyped = config("gpu.nvidia.com", "GpuConfg")
    text = wait_for(lambda: refusal(claim("wrong", THEIRS, mistyped)), "the webhook to be asked")
    assert "spec.devices.config[1].opaque.parameters.kind: 'GpuConfg' is not supported" in text
    assert refusal(claim("right", OURS)) == ""
    assert refusal(claim("theirs", config("other.example.com", "GpuConfg"))) == ""
    device_class = {"apiVersion": "resource.k8s.io/v1", "kind": "DeviceClass", "metadata": {"name": "wrong"}}
    with pytest.raises(StatusError, match=r"spec\.config\[0\]"):
        client.create(CLASSES, {**device_class, "spec": {"config": [mistyped]}})

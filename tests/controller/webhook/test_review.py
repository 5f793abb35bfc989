# SPDX-License-Identifier: Apache-2.0
"""Which configurations the webhook refuses, and what it says."""

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from controller.errors import ReviewError
from controller.webhook.review import answer, problems

JSON = dict[str, Any]

GOOD: JSON = {"apiVersion": "resource.nvidia.com/v1beta1", "kind": "GpuConfig"}
MISTYPED: JSON = {**GOOD, "kind": "GpuConfg"}
REACHING: JSON = {**GOOD, "additionalDevices": ["mofed"]}
UID = "8a1f0c52-6d6c-4b7e-9f0e-0c9a7a1b2c3d"
CHANNEL: JSON = {**GOOD, "kind": "ComputeDomainChannelConfig", "domainID": UID, "allocationMode": "Single"}
DAEMON: JSON = {**GOOD, "kind": "ComputeDomainDaemonConfig", "domainID": UID}
UNKNOWN_FIELD: JSON = {**GOOD, "sharing": {"strategy": "MPS", "mpsConfg": {}}}


def config(parameters: object, driver: str = "gpu.nvidia.com") -> JSON:
    return {"opaque": {"driver": driver, "parameters": parameters}}


def of_domain(parameters: object) -> JSON:
    return config(parameters, driver="compute-domain.nvidia.com")


def claim(*configs: JSON, **meta: Any) -> JSON:
    return {"metadata": meta, "spec": {"devices": {"config": list(configs)}}}


def template(*configs: JSON) -> JSON:
    return {"spec": {"spec": {"devices": {"config": list(configs)}}}}


def device_class(*configs: JSON) -> JSON:
    return {"spec": {"config": list(configs)}}


@pytest.mark.parametrize(
    ("kind", "value", "expected"),
    [
        ("ResourceClaim", claim(), []),
        ("ResourceClaim", {"spec": {}}, []),
        ("ResourceClaim", claim(config(GOOD)), []),
        ("ResourceClaim", claim(config(MISTYPED, driver="other.example.com")), []),
        ("ResourceClaim", claim({"requests": ["gpu"]}), []),
        (
            "ResourceClaim",
            claim(config(GOOD), config(MISTYPED)),
            ["spec.devices.config[1].opaque.parameters.kind: 'GpuConfg' is not supported"],
        ),
        (
            "ResourceClaimTemplate",
            template(config(UNKNOWN_FIELD)),
            ["spec.spec.devices.config[0].opaque.parameters.sharing.mpsConfg: "],
        ),
        ("DeviceClass", device_class(config(REACHING)), []),
        (
            "ResourceClaim",
            claim(config(REACHING)),
            ["spec.devices.config[0].opaque.parameters.additionalDevices[0]: mofed gives access to hardware"],
        ),
        ("DeviceClass", device_class(config(MISTYPED)), ["spec.config[0].opaque.parameters.kind: "]),
        ("DeviceClass", device_class(config("text")), ["spec.config[0].opaque.parameters: must be an object"]),
        ("DeviceClass", device_class(config({})), ["spec.config[0].opaque.parameters.apiVersion: is required"]),
        (
            "ResourceClaim",
            claim(config(MISTYPED), config(UNKNOWN_FIELD)),
            ["spec.devices.config[0].", "spec.devices.config[1]."],
        ),
        ("Pod", claim(config(MISTYPED)), []),
        ("ResourceClaim", claim(of_domain(CHANNEL), of_domain(DAEMON)), []),
        (
            "ResourceClaimTemplate",
            template(of_domain({**CHANNEL, "domainID": ""}), of_domain({**CHANNEL, "allocationMode": "Some"})),
            [
                "spec.spec.devices.config[0].opaque.parameters.domainID: cannot be empty",
                "spec.spec.devices.config[1].opaque.parameters.allocationMode: must be Single or All, not 'Some'",
            ],
        ),
        ("ResourceClaim", claim(config(CHANNEL)), ["spec.devices.config[0].opaque.parameters.kind: "]),
    ],
)
def test_configurations_for_this_driver_are_judged_wherever_they_are(
    kind: str, value: JSON, expected: list[str]
) -> None:
    found = problems(kind, "CREATE", value, {})
    assert len(found) == len(expected)
    for problem, beginning in zip(found, expected, strict=True):
        assert problem.startswith(beginning)


@pytest.mark.parametrize(
    ("value", "old", "refused"),
    [
        (claim(config(MISTYPED)), claim(config(GOOD)), True),
        (claim(config(MISTYPED), labels={"a": "b"}), claim(config(MISTYPED)), False),
        (claim(config(GOOD), config(MISTYPED)), claim(config(MISTYPED)), False),
        (claim(config(MISTYPED), deletionTimestamp="2026-01-01T00:00:00Z"), claim(config(GOOD)), False),
    ],
)
def test_an_update_is_judged_by_what_it_changes(value: JSON, old: JSON, refused: bool) -> None:
    assert bool(problems("ResourceClaim", "UPDATE", value, old)) == refused


def test_a_deletion_is_never_refused() -> None:
    assert not problems("ResourceClaim", "DELETE", {}, claim(config(MISTYPED)))


def review(value: JSON, **request: Any) -> JSON:
    kind = {"group": "resource.k8s.io", "version": "v1", "kind": "ResourceClaim"}
    return {
        "apiVersion": "admission.k8s.io/v1",
        "kind": "AdmissionReview",
        "request": {"uid": "u1", "kind": kind, "operation": "CREATE", "object": value, **request},
    }


def test_the_answer_names_the_request_and_every_problem() -> None:
    assert answer(review(claim(config(GOOD)))) == {
        "apiVersion": "admission.k8s.io/v1",
        "kind": "AdmissionReview",
        "response": {"uid": "u1", "allowed": True},
    }
    refusal = answer(review(claim(config(MISTYPED), config(UNKNOWN_FIELD))))["response"]
    assert (refusal["uid"], refusal["allowed"]) == ("u1", False)
    assert (refusal["status"]["code"], refusal["status"]["reason"]) == (422, "Invalid")
    message = refusal["status"]["message"]
    assert message.startswith("2 configurations for gpu.nvidia.com cannot be used: spec.devices.config[0]")
    assert "; spec.devices.config[1]" in message


def test_setting_without_effect_is_allowed_with_a_warning() -> None:
    shared = config({**GOOD, "kind": "MigDeviceConfig", "sharing": {"strategy": "TimeSlicing"}})
    response = answer(review(claim(config(GOOD), shared)))["response"]
    (warning,) = response["warnings"]
    assert response["allowed"]
    assert warning.startswith("spec.devices.config[1].opaque.parameters.sharing.strategy: TimeSlicing changes nothing")
    assert len(warning) <= 256  # what kubectl is shown of each
    again = answer(review(claim(shared), operation="UPDATE", oldObject=claim(shared)))["response"]
    assert again == {"uid": "u1", "allowed": True}
    assert "warnings" not in answer(review(claim(shared, config(MISTYPED))))["response"]


@pytest.mark.parametrize(
    ("value", "warning"),
    [
        (claim(of_domain(CHANNEL), name="mine"), ""),
        (claim(of_domain(DAEMON), name="mine"), "kind: only the cluster controller makes claims for IMEX daemons"),
        (claim(of_domain(DAEMON), generateName=f"computedomain-daemon-{UID}-x7k2p-"), ""),
        (claim(of_domain({**CHANNEL, "domainID": "train"}), name="mine"), "domainID: 'train' is not the UID"),
    ],
)
def test_handwritten_configuration_for_a_compute_domain_gets_a_warning(value: JSON, warning: str) -> None:
    response = answer(review(value))["response"]
    assert response["allowed"]
    found = "".join(response.get("warnings", []))
    assert len(found) <= 256
    assert found.startswith(f"spec.devices.config[0].opaque.parameters.{warning}" if warning else "")
    assert bool(found) == bool(warning)


def test_a_refusal_names_the_drivers_whose_configurations_are_invalid() -> None:
    for configs, drivers in (
        ([of_domain({})], "1 configuration for compute-domain.nvidia.com cannot"),
        ([config({}), of_domain({})], "2 configurations for gpu.nvidia.com and compute-domain.nvidia.com cannot"),
    ):
        assert answer(review(claim(*configs)))["response"]["status"]["message"].startswith(drivers)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ([], "must be an object"),
        ({}, "apiVersion: is required"),
        ({**review({}), "apiVersion": "admission.k8s.io/v1beta1"}, "must be an AdmissionReview of admission.k8s.io/v1"),
        ({**review({}), "request": None}, "request: is required"),
        (review({}, uid=""), "request.uid: is required"),
        (review({"spec": {"devices": {"config": {}}}}), "config: must be a list"),
        (review({"metadata": 5}), "metadata: must be an object"),
    ],
)
def test_invalid_review_raises_an_error(value: object, text: str) -> None:
    with pytest.raises(ReviewError) as caught:
        answer(value)
    assert text in str(caught.value)


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The way to every part of a JSON value, as keys and indexes."""
    yield path
    entries = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, part in entries:
        yield from places(part, (*path, key))


def replaced(value: Any, path: tuple[Any, ...], part: object) -> Any:
    """The value with another part at a place."""
    if not path:
        return part
    copy = value.copy()
    copy[path[0]] = replaced(copy[path[0]], path[1:], part)
    return copy


@pytest.mark.parametrize("part", [None, 5, True, "text", [], [1], {}, {"a": 1}], ids=repr)
@pytest.mark.parametrize(
    ("kind", "make"), [("ResourceClaim", claim), ("ResourceClaimTemplate", template), ("DeviceClass", device_class)]
)
def test_whatever_a_part_of_a_review_is_there_is_an_answer(
    kind: str, make: Callable[[JSON], JSON], part: object
) -> None:
    shared = {**GOOD, "sharing": {"strategy": "TimeSlicing", "timeSlicingConfig": {"interval": "Short"}}}
    whole = review(
        {**make(config(shared)), "metadata": {"name": "a"}},
        kind={"group": "resource.k8s.io", "version": "v1", "kind": kind},
        operation="UPDATE",
        oldObject={"metadata": {}, **make(config(GOOD))},
    )
    answered = 0
    for path in places(whole):
        with contextlib.suppress(ReviewError):
            answered += answer(replaced(whole, path, part))["response"]["uid"] == "u1"
    assert answered  # what is none of ours may be anything

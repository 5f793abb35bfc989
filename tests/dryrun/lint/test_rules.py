# SPDX-License-Identifier: Apache-2.0
"""Every rule finds what breaks it, where it is, and nothing where nothing is wrong."""

import pytest

from dra_driver.dryrun.lint.finding import LintRule, Severity

from .cases import CASES, NET, OF_TEMPLATE, Case
from .support import claim, lint_text, pod, request, rules, selecting, selectors, stream, template


def label(case: Case) -> str:
    return f"{case.rule} {case.path} {case.says[:20]}"


@pytest.mark.parametrize("case", CASES, ids=label)
def test_broken_rule_is_reported_at_its_path(case: Case) -> None:
    findings = lint_text(case.bad, case.release)
    assert [(one.rule, one.path) for one in findings] == [(case.rule, case.path)], "\n".join(map(str, findings))
    assert case.says in findings[0].message


@pytest.mark.parametrize("case", CASES, ids=label)
def test_correct_objects_have_no_findings(case: Case) -> None:
    assert [str(one) for one in lint_text(case.good, case.release)] == []


def test_every_rule_has_an_example() -> None:
    assert {case.rule for case in CASES} == {rule.id for rule in LintRule}


def test_a_finding_has_the_severity_of_its_rule() -> None:
    severities = {rule.id: rule.severity for rule in LintRule}
    for case in CASES:
        for one in lint_text(case.bad, case.release):
            assert one.severity is severities[one.rule]
    assert set(severities.values()) == set(Severity)


@pytest.mark.parametrize(
    ("version", "release", "expected"),
    [
        ("v1beta1", "1.32", []),
        ("v1beta2", "1.32", ["api-version-not-served"]),
        ("v1beta2", "1.33", []),
        ("v1", "1.33", ["api-version-not-served"]),
        ("v1alpha3", "1.33", []),
        ("v1alpha3", "1.34", ["api-version-not-served"]),
        ("v1", "1.34", []),
        ("v1beta1", "1.34", ["deprecated-api-version"]),
        ("v1beta2", "1.37", ["deprecated-api-version"]),
        ("v1", "1.37", []),
    ],
)
def test_versions_are_judged_by_the_release(version: str, release: str, expected: list[str]) -> None:
    flat = {"name": "gpu", "deviceClassName": "gpu.nvidia.com"}
    one = claim([flat if version in ("v1beta1", "v1alpha3") else request()], version=version)
    assert rules(lint_text(stream(one), release)) == expected


def test_a_claim_has_all_its_mistakes_found_at_once() -> None:
    requests = [
        request("one", cuont=1, count="2", selectors=selectors("1 +")),
        {"exactly": {}},
        request("two", "gpu.nvidai.com", selectors=selectors("device.driver == 5")),
    ]
    found = lint_text(stream(claim(requests, constraints=[{"requests": ["three"], "matchAttribute": "x/y"}])))
    assert sorted({one.rule for one in found}) == [
        "constraint-names-no-request",
        "schema",
        "selector-refused",
        "unknown-class",
        "unknown-field",
    ]
    assert not any("stand-in" in one.message for one in found)


def test_selectors_for_devices_of_which_nothing_is_known_are_only_compiled() -> None:
    wanted = selecting("device.attributes['net.example.com'].speed > 100", device_class="net")
    assert lint_text(stream(NET, wanted)) == []
    broken = selecting("device.attributes['net.example.com'].speed >", device_class="net")
    assert rules(lint_text(stream(NET, broken))) == ["selector-refused"]


def test_objects_of_other_kinds_are_passed_over() -> None:
    assert lint_text("{kind: Service, apiVersion: v1, metadata: {name: a, name: b}}\n---\n- {a: 5}\n---\n") == []
    assert lint_text("{kind: DeviceTaintRule, apiVersion: resource.k8s.io/v1, metadata: {name: a}}") == []


@pytest.mark.parametrize(
    ("kind", "api_version", "path"),
    [
        ("Deployment", "apps/v1", ("spec", "template")),
        ("Job", "batch/v1", ("spec", "template")),
        ("CronJob", "batch/v1", ("spec", "jobTemplate", "spec", "template")),
    ],
)
def test_pod_templates_of_workloads_are_checked(kind: str, api_version: str, path: tuple[str, ...]) -> None:
    inner: object = {"spec": pod([{"name": "gpu", **OF_TEMPLATE}], {"name": "gpu", "request": "small"})["spec"]}
    for step in reversed(path):
        inner = {step: inner}
    assert isinstance(inner, dict)
    workload = {"apiVersion": api_version, "kind": kind, "metadata": {"name": "cuda"}, **inner}
    (found,) = lint_text(stream(template(name="one-gpu"), workload))
    assert found.rule == "container-names-no-request"
    assert found.path == f"{'.'.join(path)}.spec.containers[0].resources.claims[0].request"


def test_a_template_of_another_namespace_is_none_of_the_pods() -> None:
    there, here = template(name="one-gpu"), pod([{"name": "gpu", **OF_TEMPLATE}], {"name": "gpu"})
    there["metadata"]["namespace"], here["metadata"]["namespace"] = "there", "here"
    (found,) = lint_text(stream(there, here))
    assert found.message.endswith("is in namespace there, the pod in here: they must be in one")
    del there["metadata"]["namespace"]
    assert lint_text(stream(there, here)) == [], "one without a namespace may go to any"

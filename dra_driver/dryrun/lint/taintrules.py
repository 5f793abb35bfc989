# SPDX-License-Identifier: Apache-2.0
"""DeviceTaintRules that select more devices than their author may expect.

A rule has no dry run. With the effect NoExecute, it evicts every pod that has one of the devices and does not tolerate
the taint (kubernetes/kubernetes#141422).
"""

from collections.abc import Iterator
from typing import Any

from ...kube.releases import RULES, has_rule
from ...kube.resource import TaintEffect
from .finding import LintIssue, LintRule
from .subject import LintContext, Subject, is_device_api

_SELECTOR = "spec.deviceSelector"


def check_taint_rule(subject: Subject, context: LintContext) -> Iterator[LintIssue]:
    """Check which devices a rule selects. A rule with the effect None has no consequences."""
    document = subject.document
    spec = document.value.get("spec")
    if not is_device_api(document) or document.kind != "DeviceTaintRule" or not isinstance(spec, dict):
        return
    if _text(spec.get("taint"), "effect") == TaintEffect.NONE:
        return
    for path, problem in _problems(spec.get("deviceSelector"), context.release):
        yield LintIssue(LintRule.TAINT_RULE_SELECTS_TOO_MUCH, path, problem)


def _problems(selector: Any, release: str) -> Iterator[tuple[str, str]]:
    if selector is None:
        issue = RULES["rule_without_selector_taints_all"].issue
        if has_rule(release, "rule_without_selector_taints_all"):
            text = f"without deviceSelector, Kubernetes {release} taints every device, and from 1.38 on none"
        else:
            text = f"without deviceSelector, Kubernetes {release} taints no device, and up to 1.37 every device"
        yield "spec", f"{text} ({issue}): name a driver"
        return
    if not isinstance(selector, dict):
        return
    driver, pool, device = (_text(selector, name) for name in ("driver", "pool", "device"))
    if not (driver or pool or device):
        yield _SELECTOR, "an empty deviceSelector taints every device of every driver: name a driver"
    elif not driver:
        yield _SELECTOR, "taints devices of every driver that have these names: name a driver"
    elif device and not pool:
        yield f"{_SELECTOR}.device", f"taints the devices {device!r} of all pools, that is, of all nodes: name a pool"


def _text(value: Any, name: str) -> str:
    found = value.get(name) if isinstance(value, dict) else None
    return found if isinstance(found, str) else ""

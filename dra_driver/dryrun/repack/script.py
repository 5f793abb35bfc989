# SPDX-License-Identifier: Apache-2.0
"""The commands that carry out a plan, as a shell script with a check after each step.

Before a pod is evicted, a guard keeps the places free that the demand and later steps need: DeviceTaintRules with the
effect NoSchedule, which do nothing to pods that run there, or cordons. All objects of a guard have a label, so that the
next run finds and removes them. In the end the demand is created while its place is kept free, and then let in.
"""

import hashlib
import json
import re
import shlex
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from ...kube.resource import DeviceTaint, DeviceTaintRule, DeviceTaintSelector, ObjectMeta, ResourceSlice, TaintEffect
from ...scheduler.repack import GUARD_TAINT, Guard, RepackPlan, RepackStep
from ..drain.rules import encoded_rule, version_of
from ..report import to_json
from .question import Repacking, guarded_nodes, guarding_rules

_MARK: Final = f"{GUARD_TAINT}=yes"
_NO_NAME: Final = re.compile(r"[^a-z0-9.-]+")
_TIMEOUT: Final = "5m"
_SECONDS: Final = 5
_PLACED: Final = """\
placed() {  # waits until every pod with these labels has a node
  for _ in 1 2 3 4 5 6 7 8 9 10; do
    kubectl wait --for=condition=PodScheduled pod "$@" --timeout=30s && return
    sleep 1
  done
  echo 'a pod waits for a node: make the plan anew' >&2; exit 1
}"""


@dataclass(frozen=True, slots=True)
class Script:
    """A script for the first `steps` of a plan. `again` is the command that made the plan, `files` are those of the
    demand, and `kubectl` is kubectl with its options for the cluster and the namespace.
    """

    repacking: Repacking
    again: Sequence[str]
    files: Sequence[str] = ()
    steps: int | None = None
    kubectl: Sequence[str] = ("kubectl",)

    def text(self) -> str:
        """The script. Without a plan it only says so, and fails."""
        return "\n".join(self._lines()) + "\n"

    def _lines(self) -> Iterator[str]:
        plan = self.repacking.result.plan
        yield "#!/bin/sh"
        if plan is None:
            yield "echo 'there is no plan' >&2; exit 1"
            return
        count = len(plan.steps)
        shown = count if self.steps is None else min(self.steps, count)
        yield f"# For {self.repacking.question.words}: {count} pod{'s' * (count != 1)} to move."
        yield "set -eu"
        if shown:
            yield _PLACED
        if tuple(self.kubectl) != ("kubectl",):
            yield f'kubectl() {{ command {shlex.join(self.kubectl)} "$@"; }}'
        guard = _Keeper(self.repacking)
        for number, step in enumerate(plan.steps[:shown], 1):
            yield f"\n# step {number} of {count}: {step.pod} from {step.source} to {step.target}"
            yield from guard.change(step.guard)
            yield from _eviction(step)
            yield from self._check(count - number)
        if shown == count:
            yield f"\n# the end: {self.repacking.question.words}"
            yield from self._end(plan, guard)

    def _check(self, left: int) -> Iterator[str]:
        yield "# check: no more moves are needed than before, or the plan is made anew"
        yield f"{shlex.join([*self.again, '--at-most', str(left)])} > /dev/null"

    def _end(self, plan: RepackPlan, guard: "_Keeper") -> Iterator[str]:
        """Creates the demand while its places are kept free, and lets one unit after the other in."""
        if plan.placements and self.files:
            if plan.steps:
                yield from guard.change(plan.steps[-1].guard)
            yield f"kubectl apply {' '.join(f'-f {shlex.quote(file)}' for file in self.files)}"
            for placement in plan.placements[:-1]:
                if placement.guard != plan.placements[-1].guard:
                    yield from guard.change(placement.guard)
                    yield f"sleep {_SECONDS}  # the scheduler places a pod"
        yield from guard.change(Guard())


class _Keeper:
    """The commands that change what is kept free."""

    def __init__(self, repacking: Repacking) -> None:
        source, features = repacking.question.source, repacking.question.features
        self._version = version_of(features, asked=True)
        self._rules = guarding_rules(source)
        self._nodes = guarded_nodes(source)
        self._pools: dict[tuple[str, str], set[str]] = {}
        for object_ in source.objects:
            if isinstance(object_, ResourceSlice):
                names = self._pools.setdefault((object_.driver, object_.pool.name), set())
                names.update(device.name for device in object_.devices)

    def change(self, guard: Guard) -> Iterator[str]:
        """Keeps free what the guard says, and nothing else."""
        rules = {rule.metadata.name: rule for rule in self._rules_for(guard)}
        new = [rule for name, rule in rules.items() if name not in self._rules]
        gone = [name for name in self._rules if name not in rules]
        if new:
            document = {
                "apiVersion": "v1",
                "kind": "List",
                "items": [encoded_rule(rule, self._version) for rule in new],
            }
            yield "kubectl apply -f - <<'EOF'"
            yield to_json(document)
            yield "EOF"
        if gone:
            yield f"kubectl delete devicetaintrules --ignore-not-found {' '.join(gone)}"
        for node in sorted(guard.nodes - set(self._nodes)):
            yield f"kubectl label node {node} {_MARK}"
            yield f"kubectl cordon {node}"
        for node in sorted(set(self._nodes) - guard.nodes):
            yield f"kubectl uncordon {node}"
            yield f"kubectl label node {node} {GUARD_TAINT}-"
        self._rules, self._nodes = list(rules), sorted(guard.nodes)

    def _rules_for(self, guard: Guard) -> Iterator[DeviceTaintRule]:
        by_pool: dict[tuple[str, str], set[str]] = {}
        for driver, pool, device in guard.devices:
            by_pool.setdefault((driver, pool), set()).add(device)
        for (driver, pool), devices in sorted(by_pool.items()):
            whole = devices == self._pools.get((driver, pool))
            selected: list[str | None] = [None] if whole else [*sorted(devices)]
            for name_of_device in selected:
                selector = DeviceTaintSelector(driver, pool, name_of_device)
                name = _name([driver, pool, name_of_device or ""])
                labels = {GUARD_TAINT: "yes"}
                taint = DeviceTaint(GUARD_TAINT, TaintEffect.NO_SCHEDULE)
                yield DeviceTaintRule(ObjectMeta(name=name, labels=labels), taint, selector)


def _name(parts: Iterable[str]) -> str:
    """A name that depends only on what is selected."""
    driver, pool, device = parts
    digest = hashlib.sha256("/".join((driver, pool, device)).encode()).hexdigest()[:8]
    plain = _NO_NAME.sub("-", f"repack-{pool}-{device}".lower())[:180].strip("-.")
    return f"{plain}-{digest}"


def _eviction(step: RepackStep) -> Iterator[str]:
    """Evicts the pod, waits until it is gone, and until its successor has a node."""
    pod = step.pod
    body = {
        "apiVersion": "policy/v1",
        "kind": "Eviction",
        "metadata": {"name": pod.name, "namespace": pod.namespace},
        "deleteOptions": {"preconditions": {"uid": pod.uid}},
    }
    path = f"/api/v1/namespaces/{pod.namespace}/pods/{pod.name}/eviction"
    yield f"echo {shlex.quote(json.dumps(body))} | kubectl create --raw {path} -f -"
    yield f"kubectl wait --for=delete pod/{pod.name} -n {pod.namespace} --timeout={_TIMEOUT}"
    labels = ",".join(f"{key}={value}" for key, value in sorted(pod.labels.items()))
    selected = f"-l {shlex.quote(labels)}" if labels else "--all"
    yield f"placed -n {pod.namespace} {selected}"

# SPDX-License-Identifier: Apache-2.0
"""Argo Workflows: the pods that are there at the same time.

Steps of one group and tasks that do not depend on each other run in parallel. Later tasks are another wave, which gets
the devices that the earlier pods have left.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import zip_longest
from typing import Any, Final

from ..errors import ParseError
from ..kube.resource.codec import DecodeError
from ..process.parsing import load_all
from .documents import JSON, each, within
from .groups import FormPart, Key, PodGroup, joined, merged, whole_number

_GROUP: Final = "argoproj.io"
_DEEPEST: Final = 20
_MOST_WAVES: Final = 100
_NAME: Final = re.compile(r"[A-Za-z0-9_-]+")
_OF_POD: Final = (
    *("nodeSelector", "affinity", "tolerations", "schedulerName", "priorityClassName", "hostNetwork"),
    "resourceClaims",
)
"""Fields of pods that workflows and templates have. Those of a template replace those of the workflow."""
_IMAGE: Final = "set-by-the-workflow"
_OF_WORKFLOW: Final = ("source", "dependencies", "mirrorVolumeMounts")
"""Fields that scripts, containers of a containerSet and sidecars have, and containers of pods do not."""
_TYPES: Final = ("container", "containerSet", "script", "resource", "data", "http", "plugin", "suspend", "steps", "dag")
"""Fields of a template that say what it does. A template has one of them."""


@dataclass(frozen=True, slots=True)
class _Leaf:
    """`count` pods of a template at `path`."""

    template: JSON
    path: str
    count: int = 1


_Wave = tuple[_Leaf, ...]


@dataclass
class _Workflow:
    """The templates of a workflow while its waves are collected."""

    part: FormPart
    spec: JSON
    path: str
    unknown: dict[str, None] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._templates = {
            str(template.get("name")): (self._with_defaults(template), f"{joined(self.path, 'templates')}[{index}]")
            for index, template in enumerate(each(self.spec, "templates"))
        }

    def _with_defaults(self, template: JSON) -> JSON:
        """The template with the fields of `templateDefaults`, but not with those of templates of other types."""
        defaults = within(self.spec, "templateDefaults")
        kept = {name: field for name, field in defaults.items() if name not in _TYPES or name in template}
        return merged(kept, template)

    def waves(self) -> list[_Wave]:
        """The waves in their order. The pods of one wave run at the same time."""
        name = str(self.spec.get("entrypoint") or "")
        if name not in self._templates:
            if name:
                raise DecodeError(joined(self.path, "entrypoint"), f"there is no template {name!r} in it")
            return [wave for template, path in self._templates.values() for wave in self._of(template, path, 0)]
        waves = self._of(*self._templates[name], 0)
        most = whole_number(self.spec, "parallelism", 0, self.path)
        return [_limited(wave, most) for wave in waves] if most else waves

    def _of(self, template: JSON, path: str, depth: int) -> list[_Wave]:
        if depth > _DEEPEST:
            self.unknown["its templates call each other without end"] = None
            return []
        waves: list[_Wave] = []
        if isinstance(template.get("steps"), list):
            for index, group in enumerate(template["steps"]):
                steps = group if isinstance(group, list) else [group]
                where = f"{path}.steps[{index}]"
                members = [
                    self._called(step, f"{where}[{number}]", depth)
                    for number, step in enumerate(steps)
                    if isinstance(step, dict)
                ]
                waves += _at_once(members)
        elif isinstance(template.get("dag"), dict):
            waves = self._of_graph(each(template["dag"], "tasks"), joined(path, "dag.tasks"), depth)
        elif template.get("resource") is not None:
            name = template.get("name")
            self.unknown[f"template {name} creates another object, which was not evaluated"] = None
        elif any(isinstance(template.get(kind), dict) for kind in ("container", "script", "containerSet")):
            waves = [(_Leaf(template, path),)]
        most = whole_number(template, "parallelism", 0, path)
        waves = [_limited(wave, most) for wave in waves] if most else waves
        return waves[:_MOST_WAVES]

    def _of_graph(self, tasks: Sequence[JSON], path: str, depth: int) -> list[_Wave]:
        """The tasks in levels: each begins after all tasks that it names."""
        names = [str(task.get("name")) for task in tasks]
        needs = [
            {
                name
                for text in [*(task.get("dependencies") or ()), str(task.get("depends") or "")]
                for name in _NAME.findall(str(text))
                if name in names
            }
            for task in tasks
        ]
        levels: dict[str, int] = {}
        for level in range(len(tasks)):
            ready = [
                name
                for name, needed in zip(names, needs, strict=True)
                if name not in levels and all(levels.get(dependency, level) < level for dependency in needed)
            ]
            levels |= dict.fromkeys(ready, level)
        waves: list[_Wave] = []
        for level in range(max(levels.values(), default=-1) + 1):
            members = [
                self._called(task, f"{path}[{index}]", depth)
                for index, task in enumerate(tasks)
                if levels.get(names[index]) == level
            ]
            waves += _at_once(members)
        return waves

    def _called(self, step: JSON, path: str, depth: int) -> list[_Wave]:
        """The waves of the template that a step or a task names, as often as it runs at once."""
        waves: list[_Wave] = []
        name = str(step.get("template") or "")
        if isinstance(step.get("inline"), dict):
            waves = self._of(step["inline"], f"{path}.inline", depth + 1)
        elif isinstance(step.get("templateRef"), dict):
            waves = self._referred(step["templateRef"], path, depth)
        elif name in self._templates:
            waves = self._of(*self._templates[name], depth + 1)
        else:
            raise DecodeError(f"{path}.template", f"there is no template {name!r} in it")
        count = self._times(step, path)
        return [tuple(replace(leaf, count=leaf.count * count) for leaf in wave) for wave in waves]

    def _referred(self, reference: JSON, path: str, depth: int) -> list[_Wave]:
        name, wanted = str(reference.get("name")), str(reference.get("template"))
        place = _place_of(self.part, name, cluster=reference.get("clusterScope") is True)
        found = self.part.library.find(*place)
        if found is None:
            why = self.part.library.reason(*place)
            self.unknown[f"WorkflowTemplate {name}, which has a template of it, {why}"] = None
            return []
        other = _Workflow(self.part, within(found, "spec"), f"{path}.templateRef")
        other.unknown = self.unknown
        return [
            tuple(replace(leaf, path=f"{path}.templateRef") for leaf in wave)
            for template, where in other._templates.values()
            if template.get("name") == wanted
            for wave in other._of(template, where, depth + 1)
        ]

    def _times(self, step: JSON, path: str) -> int:
        if isinstance(step.get("withItems"), list):
            return len(step["withItems"])
        if step.get("withParam") is not None:
            self.unknown["the number of parallel pods of a step is known only when it runs: 1 is evaluated"] = None
            return 1
        sequence = step.get("withSequence")
        if not isinstance(sequence, dict):
            return 1
        try:
            if sequence.get("count") is not None:
                return int(str(sequence["count"]))
            return abs(int(str(sequence.get("end", 0))) - int(str(sequence.get("start", 0)))) + 1
        except ValueError:
            self.unknown["the number of parallel pods of a step is a parameter: 1 is evaluated"] = None
            return 1


def _at_once(members: Sequence[list[_Wave]]) -> list[_Wave]:
    return [tuple(leaf for wave in waves if wave is not None for leaf in wave) for waves in zip_longest(*members)]


def _limited(wave: _Wave, most: int) -> _Wave:
    """The first pods of a wave, if no more may run at once."""
    found: list[_Leaf] = []
    for leaf in wave:
        count = min(leaf.count, most - sum(leaf.count for leaf in found))
        if count > 0:
            found.append(replace(leaf, count=count))
    return tuple(found)


def _place_of(part: FormPart, name: str, *, cluster: bool) -> tuple[Key, str, str]:
    """The key, the namespace and the name of a WorkflowTemplate or ClusterWorkflowTemplate."""
    kind, namespace = ("ClusterWorkflowTemplate", "") if cluster else ("WorkflowTemplate", part.namespace)
    return (_GROUP, kind), namespace, name


def workflow(part: FormPart) -> Iterator[PodGroup]:
    """The pods of a workflow in waves, each of which is a stage."""
    spec, path = part.value, part.path
    reference = within(spec, "workflowTemplateRef")
    if reference:
        name = str(reference.get("name"))
        place = _place_of(part, name, cluster=reference.get("clusterScope") is True)
        found = part.library.find(*place)
        path = joined(path, "workflowTemplateRef")
        if found is None:
            said = f"WorkflowTemplate {name}, which has its templates, {part.library.reason(*place)}"
            yield PodGroup(path, {}, {}, 0, unknown=(said,))
            return
        spec = {**within(found, "spec"), **spec}
    flow = _Workflow(part, spec, path)
    seen: set[tuple[tuple[str, int], ...]] = set()
    for number, wave in enumerate(flow.waves(), start=1):
        leaves: dict[str, _Leaf] = {}
        for leaf in wave:
            known = leaves.get(leaf.path)
            leaves[leaf.path] = leaf if known is None else replace(known, count=known.count + leaf.count)
        shape = tuple((leaf.path, leaf.count) for leaf in leaves.values())
        if shape in seen:
            continue
        seen.add(shape)
        for leaf in leaves.values():
            yield _pods(flow, leaf, f"{part.path} {number}")
    for text in flow.unknown:
        yield PodGroup(path, {}, {}, 0, unknown=(text,))


def _pods(flow: _Workflow, leaf: _Leaf, stage: str) -> PodGroup:
    template = leaf.template
    kind = next(kind for kind in ("container", "script", "containerSet") if isinstance(template.get(kind), dict))
    given = [template[kind]] if kind != "containerSet" else each(template[kind], "containers")
    unknown: dict[str, None] = {}
    containers = [_container({"name": "main", "image": _IMAGE, **container}, unknown) for container in given]
    containers += [_container({"image": _IMAGE, **sidecar}, unknown) for sidecar in each(template, "sidecars")]
    spec: JSON = {name: flow.spec[name] for name in _OF_POD if flow.spec.get(name) is not None}
    spec |= {name: template[name] for name in _OF_POD if template.get(name) is not None}
    spec["containers"] = containers
    if initial := [
        _container({"image": _IMAGE, **container}, unknown) for container in each(template, "initContainers")
    ]:
        spec["initContainers"] = initial
    for patch in (flow.spec.get("podSpecPatch"), template.get("podSpecPatch")):
        spec = _patched(spec, patch, unknown)
    below = f"{leaf.path}.{kind}"
    moved = (
        {f"containers[{index}]": f"{below}.containers[{index}]" for index in range(len(given))}
        if kind == "containerSet"
        else {"containers[0]": below}
    )
    claims, defaults = template.get("resourceClaims"), within(flow.spec, "templateDefaults")
    claims_of = flow.path if claims is None else leaf.path
    if claims is not None and claims is defaults.get("resourceClaims"):
        claims_of = joined(flow.path, "templateDefaults")
    moved["resourceClaims"] = joined(claims_of, "resourceClaims")
    role = str(template.get("name") or "")
    return PodGroup(
        leaf.path, spec, within(template, "metadata"), leaf.count, role, moved, stage=stage, unknown=tuple(unknown)
    )


def _container(container: JSON, unknown: dict[str, None]) -> JSON:
    """The container without fields that only workflows have, and without amounts that are parameters."""
    container = {name: field for name, field in container.items() if name not in _OF_WORKFLOW}
    resources = dict(within(container, "resources"))
    for kind in ("limits", "requests"):
        amounts = within(resources, kind)
        if any("{{" in str(amount) for amount in amounts.values()):
            unknown["amounts of its resources are parameters of the workflow, and are not considered"] = None
            resources[kind] = {name: amount for name, amount in amounts.items() if "{{" not in str(amount)}
    return {**container, "resources": resources} if resources else container


def _patched(spec: JSON, patch: Any, unknown: dict[str, None]) -> JSON:
    """The pod after the patch of a template, which is a text."""
    if not isinstance(patch, str) or not patch.strip():
        return spec
    try:
        (value,) = load_all(patch)
    except (ParseError, ValueError):
        value = None
    if "{{" in patch or not isinstance(value, dict):
        unknown["its podSpecPatch has parameters, and is not considered"] = None
        return spec
    return merged(spec, value)

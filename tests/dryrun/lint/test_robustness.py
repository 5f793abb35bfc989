# SPDX-License-Identifier: Apache-2.0
"""Whatever a file holds, linting ends with findings: it never fails itself."""

import copy
import json
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from dra_driver.dryrun.positions import resolve
from tests.support import examples

from .support import claim, config, device_class, lint_text, pod, request, selectors, stream, template

OBJECTS: list[dict[str, Any]] = [
    template(
        [
            request(selectors=selectors("true"), tolerations=[{"key": "a", "operator": "Exists"}], count=1),
            {"name": "any", "firstAvailable": [{"name": "one", "deviceClassName": "gpu.nvidia.com"}]},
        ],
        constraints=[{"requests": ["gpu"], "matchAttribute": "gpu.nvidia.com/uuid"}],
        config=[config("GpuConfig", "gpu", sharing={"strategy": "TimeSlicing"})],
    ),
    claim([{"name": "gpu", "deviceClassName": "gpu.nvidia.com", "selectors": selectors("true")}], version="v1beta1"),
    device_class("device.driver == 'gpu.nvidia.com'", config=[config()]),
    pod([{"name": "gpu", "resourceClaimTemplateName": "wanted"}], {"name": "gpu", "request": "gpu"}),
]
VALUES = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(), st.sampled_from(["", "a", "A/b/c", "1 +", "v1"]), st.just([])
)
SPOILT = st.recursive(
    VALUES, lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text("ab.[", max_size=3), inner, max_size=2)
)


def all_places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [place for key, item in items for place in [(*path, key), *all_places(item, (*path, key))]]


@settings(max_examples=examples(300))
@given(st.data())
def test_spoilt_objects_are_found_fault_with(data: st.DataObject) -> None:
    objects = copy.deepcopy(OBJECTS)
    for _ in range(data.draw(st.integers(1, 3))):
        *outer, last = data.draw(st.sampled_from(all_places(objects)))
        parent: Any = objects
        for step in outer:
            parent = parent[step]
        if data.draw(st.booleans()):
            parent[last] = data.draw(SPOILT)
        else:
            del parent[last]
    text = stream(*objects)
    for one in lint_text(text):
        assert 1 <= one.line <= text.count("\n") + 1
        assert one.column >= 1
        assert one.message
        assert "stand-in" not in one.message


@settings(max_examples=examples(200))
@given(st.text("ab:-[]{}|>'\"#&*!<%@ \t\n\\x", max_size=60))
def test_any_text_is_read_or_refused(text: str) -> None:
    assert all(one.rule in ("unreadable", "not-an-object") for one in lint_text(text))


@given(SPOILT, st.text("a.b[]0", max_size=8))
def test_a_path_leads_only_to_what_exists(value: Any, path: str) -> None:
    steps, _ = resolve(value, path)
    for step in steps:
        value = value[step]
    json.dumps(str(value))

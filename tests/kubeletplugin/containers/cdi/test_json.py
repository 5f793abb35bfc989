# SPDX-License-Identifier: Apache-2.0
"""Specs as JSON: the format's own field names, and no field that is absent."""

import json

from kubeletplugin.containers.cdi.spec import dumps

from .specs import EVERYTHING, EVERYTHING_JSON, MINIMAL


def test_every_field_is_spelled_as_the_format_spells_it() -> None:
    assert json.loads(dumps(EVERYTHING)) == EVERYTHING_JSON


def test_absent_fields_are_not_written() -> None:
    assert json.loads(dumps(MINIMAL)) == {
        "cdiVersion": "0.3.0",
        "kind": "nvidia.com/gpu",
        "devices": [{"name": "gpu0", "containerEdits": {"deviceNodes": [{"path": "/dev/nvidia0"}]}}],
    }

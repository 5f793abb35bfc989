# SPDX-License-Identifier: Apache-2.0
"""A process in a container has a name with control characters, and keeps a device open."""

from pathlib import Path

from kubeletplugin.host.openers import names_of, openers
from tests.support.isolated import require_namespaces

from .containers import container, said, tell

RENAMED = """
import sys
with open(sys.argv[1]) as device, open("/proc/self/comm", "wb", buffering=0) as name:
    name.write(b"\\x1b[2J\\nforged\\xff")
    print("opened")
    sys.stdin.readline()
"""


def test_the_name_of_a_process_is_shown_without_control_characters(tmp_path: Path) -> None:
    require_namespaces()
    folder, device = tmp_path / "container", tmp_path / "device"
    folder.mkdir()
    device.touch()
    with container(folder, RENAMED, str(device)) as attacker:
        assert said(attacker) == "opened"
        text = names_of(openers([device]))
        tell(attacker)
    assert "forged" in text
    assert text.isprintable()

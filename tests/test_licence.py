# SPDX-License-Identifier: Apache-2.0
"""Every file of the project names its licence."""

from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
GENERATED = ("_pb2.py", "_pb2.pyi", "_pb2_grpc.py")


@pytest.mark.parametrize("folder", ["dra_driver", "controller", "kubeletplugin", "tests"])
def test_every_file_names_its_licence(folder: str) -> None:
    for path in sorted((ROOT / folder).rglob("*.py")):
        if not path.name.endswith(GENERATED):
            assert path.read_text(encoding="utf-8").startswith("# SPDX-License-Identifier: Apache-2.0\n"), path

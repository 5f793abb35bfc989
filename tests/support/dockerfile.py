# SPDX-License-Identifier: Apache-2.0
"""The instructions of the Dockerfile."""

import re
from pathlib import Path
from typing import Final

DOCKERFILE: Final = (Path(__file__).parents[2] / "Dockerfile").read_text(encoding="utf-8")


def instructions() -> list[tuple[str, str]]:
    """(instruction, arguments) of the Dockerfile, continued lines joined."""
    text = "\n".join(line for line in DOCKERFILE.splitlines() if not line.startswith("#"))
    joined = re.sub(r"\\\n\s*", " ", text)
    found = [line.split(maxsplit=1) for line in joined.splitlines() if line.strip()]
    return [(name, arguments) for name, arguments in found]


def stages() -> list[list[tuple[str, str]]]:
    """The instructions of each stage."""
    found: list[list[tuple[str, str]]] = []
    for name, arguments in instructions():
        if name == "FROM":
            found.append([])
        if found:
            found[-1].append((name, arguments))
    return found


def copied() -> list[str]:
    """What the Dockerfile copies from the checkout."""
    return [
        path
        for name, arguments in stages()[1]
        if name == "COPY" and not arguments.startswith("--from=")
        for path in arguments.split()[:-1]
        if not path.startswith("--")
    ]

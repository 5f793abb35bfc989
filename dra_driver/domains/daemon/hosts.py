# SPDX-License-Identifier: Apache-2.0
"""The addresses of a domain's host names, in the hosts file of the pod.

Every slot has an address, because IMEX would ask the DNS for names without one, with all search domains. Each line of
this daemon ends with a mark. So no line of anybody else is lost, even if a daemon was killed while it wrote.
"""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from ..names import host_name

MARK: Final = "# dra-imex-daemon"
FREE: Final = "127.0.0.2"
"""The address of a free slot. No daemon listens on it."""


def host_lines(domain_uid: str, slots: int, addresses: Mapping[int, str]) -> list[str]:
    """A line for each slot. `addresses` are those of the members, by index."""
    return [f"{addresses.get(index, FREE)}\t{host_name(domain_uid, index)}\t{MARK}\n" for index in range(slots)]


def merge_hosts(text: str, lines: list[str]) -> str:
    """The text of a hosts file with these lines, instead of those of an earlier call."""
    others = [line for line in text.splitlines(keepends=True) if not line.rstrip().endswith(MARK)]
    if lines and others and not others[-1].endswith("\n"):
        others[-1] += "\n"
    return "".join(others + lines)


def write_hosts(path: Path, lines: list[str]) -> None:
    """Put these lines into the hosts file. Raises OSError.

    The file is written in place, because /etc/hosts of a container is a mount and cannot be replaced. A single call
    writes all of it, so that readers do not see a half.
    """
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    with os.fdopen(descriptor, "r+b", buffering=0) as file:
        before = file.read()
        after = merge_hosts(before.decode(errors="surrogateescape"), lines).encode(errors="surrogateescape")
        if after != before:
            if os.pwrite(descriptor, after, 0) < len(after):
                raise OSError(f"{path} could not be written as a whole")
            os.ftruncate(descriptor, len(after))

# SPDX-License-Identifier: Apache-2.0
"""Python programs in user and mount namespaces of their own, in which they are root without being root of the machine.

Such a program may mount, and may not do anything that the user of the test may not. Without these namespaces, tests of
attacks would show nothing. They are skipped then, and fail with REQUIRE_ATTACKS=1, which `.ci/run` sets.
"""

import functools
import os
import subprocess
import sys

import pytest

_UNSHARE = ("unshare", "--user", "--map-root-user", "--mount")


def isolated(text: str, *arguments: str, propagation: str = "private") -> None:
    """Run a Python program with arguments, and fail with what it printed if it fails."""
    require_namespaces()
    command = [*_UNSHARE, f"--propagation={propagation}", sys.executable, "-c", text, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr


def require_namespaces() -> None:
    """Skip the test if this machine has no user namespaces for everybody, or fail with REQUIRE_ATTACKS=1."""
    if problem := _problem():
        (pytest.fail if os.environ.get("REQUIRE_ATTACKS") else pytest.skip)(f"needs user namespaces: {problem}")


@functools.cache
def _problem() -> str:
    try:
        done = subprocess.run([*_UNSHARE, "true"], capture_output=True, text=True, check=False, timeout=60)
    except OSError as error:
        return str(error)
    return done.stderr.strip() if done.returncode else ""

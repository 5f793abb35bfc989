# SPDX-License-Identifier: Apache-2.0
"""The same specs before the Container Device Interface project's own program.

`cdi` is the command of github.com/cncf-tags/container-device-interface: the library that container runtimes use, with
the format's JSON schema. Without it on PATH these tests are skipped.
"""

import json
import shutil
import subprocess
from pathlib import Path

import pytest

from dra_driver.cdi import Spec, dumps, validate

from .test_validation import BAD, BAD_EDITS, GOOD

CDI = shutil.which("cdi")

pytestmark = pytest.mark.skipif(CDI is None, reason="the program cdi (container-device-interface) is not on PATH")

ONLY_HERE = (
    # what SPEC.md asks for and the library leaves to the runtime
    "not an absolute path",
    "positive number of seconds",
    "from 0 to 4095",
    "from 0 to 9223372036854775807, not -1",
    # the library checks annotations of another Go type than it reads
    "annotation",
    "longer than 262144 bytes",
    # means no permissions at all, to libraries after 1.1.0 only
    "'none' has other letters",
)


def complaints(directory: Path, document: bytes) -> str:
    (directory / "spec.json").write_bytes(document)
    done = subprocess.run(
        [str(CDI), "--spec-dirs", str(directory), "validate"], capture_output=True, text=True, check=False
    )
    output = done.stdout + done.stderr
    return "" if "No CDI cache errors" in output else output


@pytest.mark.parametrize("spec", GOOD)
def test_what_is_valid_here_is_valid_there(tmp_path: Path, spec: Spec) -> None:
    assert complaints(tmp_path, dumps(spec)) == ""


@pytest.mark.parametrize("spec", [case[0] for case in BAD + BAD_EDITS])
def test_what_is_invalid_here_is_invalid_there_too(tmp_path: Path, spec: Spec) -> None:
    stricter = any(reason in validate(spec)[0].message for reason in ONLY_HERE)
    assert (complaints(tmp_path, dumps(spec)) == "") == stricter


@pytest.mark.parametrize("spec", GOOD)
def test_the_version_written_is_the_lowest_that_is_accepted(tmp_path: Path, spec: Spec) -> None:
    document = json.loads(dumps(spec))
    versions = ["0.3.0", "0.4.0", "0.5.0", "0.6.0", "0.7.0", "0.8.0", "1.0.0", "1.1.0"]
    accepted = [v for v in versions if not complaints(tmp_path, json.dumps(document | {"cdiVersion": v}).encode())]
    assert accepted[0] == document["cdiVersion"]

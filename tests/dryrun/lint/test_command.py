# SPDX-License-Identifier: Apache-2.0
"""`dra-dryrun lint` as it is run: exit codes, outputs, folders and standard input."""

import io
import json
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from dra_driver.dryrun.main import main
from dra_driver.sandbox.demo import examples_folder

from ..conftest import Write, gpu, slice_of
from .support import claim, request, selecting, stream

Lint = Callable[..., tuple[int, str, str]]

BAD = stream(claim([request(cuont=1)]))
WARNED = stream(claim([request(count=0)]))
GOOD = stream(claim())
FROM = "checked with the devices of built-in example nodes (no cluster is configured)\n"


@pytest.fixture
def linted(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Lint:
    """Runs the command: exit code, standard output, standard error."""
    for name in ("KUBECONFIG", "KUBERNETES_SERVICE_HOST"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", "/nonexistent")

    def call(*arguments: object) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as ended:
            main(["lint", *map(str, arguments)])
        captured = capsys.readouterr()
        return int(ended.value.code or 0), captured.out, captured.err

    return call


@pytest.mark.parametrize("example", sorted(examples_folder().glob("*.yaml")), ids=lambda path: path.stem)
@pytest.mark.parametrize("release", ["1.34", "1.37"])
def test_the_examples_are_clean(example: Path, release: str, linted: Lint) -> None:
    assert linted("--strict", "--kubernetes-version", release, example)[:2] == (0, "")


def test_errors_exit_with_1_and_are_lines_that_editors_understand(linted: Lint, write: Write) -> None:
    path = write("claim.yaml", BAD)
    code, out, err = linted(path)
    assert code == 1
    column = BAD.index('"cuont"') + 1
    assert out == f"{path}:1:{column}: error: cuont: unknown field; did you mean 'count'? [unknown-field]\n"
    assert err == f"{FROM}1 error, 0 warnings in 1 object of 1 file\n"


def test_warnings_alone_count_only_when_strict(linted: Lint, write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write("claim.yaml", WARNED)
    code, out, _ = linted(path)
    assert code == 0
    assert "warning: count: 0 is taken as 1" in out
    assert linted("--strict", path)[0] == 1
    monkeypatch.setenv("DRA_DRYRUN_LINT_STRICT", "1")
    assert linted(path)[0] == 1


def test_unreadable_file_exits_with_2_and_hides_no_other_file(linted: Lint, write: Write, tmp_path: Path) -> None:
    broken, missing = write("broken.yaml", "a: ["), tmp_path / "missing.yaml"
    binary = tmp_path / "binary.yaml"
    binary.write_bytes(b"a: 1\n\xff\xfe")
    code, out, _ = linted(missing, broken, binary, write("claim.yaml", BAD))
    assert code == 2
    assert f"{missing}:1:1: error: cannot be read: No such file or directory [unreadable]" in out
    assert f"{broken}:2:1: error: is not YAML: " in out
    assert f"{binary}:2:1: error: is not UTF-8 text" in out
    assert "[unknown-field]" in out


def test_clean_files_say_so(linted: Lint, write: Write) -> None:
    service = {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "a"}}
    assert linted(write("claim.yaml", GOOD), write("service.json", service)) == (
        0,
        "",
        f"{FROM}nothing found in 1 object of 2 files, 1 object of other kinds ignored\n",
    )


def test_a_folder_stands_for_its_files_and_a_dash_for_standard_input(
    linted: Lint, write: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write("b.yaml", BAD)
    write("a.json", WARNED)
    write("notes.txt", "not looked at: [")
    code, out, _ = linted(tmp_path)
    assert code == 1
    assert [line.partition(":")[0] for line in out.splitlines()] == [str(tmp_path / "a.json"), str(tmp_path / "b.yaml")]
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(BAD.encode())))
    code, out, _ = linted("-")
    assert code == 1
    assert out.startswith("standard input:1:")


def test_a_folder_without_files_is_not_clean(linted: Lint, tmp_path: Path) -> None:
    code, out, _ = linted(tmp_path)
    assert code == 2
    assert "is a folder without .yaml, .yml and .json files [unreadable]" in out


def test_a_file_that_is_named_twice_is_linted_once(linted: Lint, write: Write, tmp_path: Path) -> None:
    path = write("claim.yaml", BAD)
    assert linted(path, tmp_path, path)[2] == f"{FROM}1 error, 0 warnings in 1 object of 1 file\n"


def test_json_has_every_field_of_a_finding(linted: Lint, write: Write) -> None:
    path = write("claim.yaml", BAD)
    code, out, _ = linted(path, "-o", "json")
    assert code == 1
    answer = json.loads(out)
    assert answer["findings"] == [
        {
            "file": str(path),
            "line": 1,
            "column": BAD.index('"cuont"') + 1,
            "path": "spec.devices.requests[0].exactly.cuont",
            "rule": "unknown-field",
            "severity": "error",
            "message": "unknown field; did you mean 'count'?",
        }
    ]
    assert (answer["files"], answer["objects"], answer["passedOver"]) == (1, 1, 0)


def test_github_gets_workflow_commands_with_what_would_end_them_escaped(linted: Lint, write: Write) -> None:
    path = write("a,b.yaml", stream(claim([request("50%\n")])))
    _, out, _ = linted(path, "-o", "github")
    column = path.read_text(encoding="utf-8").index('"name": "50') + 1
    file = str(path).replace(",", "%2C")
    assert out.startswith(f"::error file={file},line=1,col={column},title=dra-dryrun invalid-name::name: '50%25\\n' is")
    assert out.count("\n") == 1


def test_nothing_is_printed_to_standard_output_for_clean_files_but_in_json(linted: Lint, write: Write) -> None:
    path = write("claim.yaml", GOOD)
    assert linted(path, "-o", "github")[1] == ""
    assert json.loads(linted(path, "-o", "json")[1])["findings"] == []


def test_selectors_are_tried_on_the_devices_that_are_given(linted: Lint, write: Write) -> None:
    slices = write("slices.json", slice_of("node-a", gpu("gpu-0")))
    wanted = write("claim.yaml", stream(selecting("device.attributes['gpu.nvidia.com'].productName.contains('A100')")))
    assert linted("--strict", wanted)[0] == 0
    code, out, _ = linted("--strict", "--slices", slices, wanted)
    assert code == 1
    assert f"is true for none of the 1 known gpu.nvidia.com devices ({slices}):" in out
    assert linted("--slices", write("none.json", {}), wanted)[0] == 2


def test_uuid_selector_is_checked_only_against_real_slices(linted: Lint, write: Write) -> None:
    device = gpu("gpu-0")
    device["attributes"]["uuid"] = {"string": "GPU-1"}
    slices = write("slices.json", slice_of("node-a", device))
    wanted = write("claim.yaml", stream(selecting("device.attributes['gpu.nvidia.com'].uuid == 'GPU-2'")))
    assert linted("--strict", wanted)[:2] == (0, "")
    code, out, _ = linted("--strict", "--slices", slices, wanted)
    assert code == 1
    assert "uuid is GPU-1 [selector-never-true]" in out


def test_the_release_decides_and_must_be_known(linted: Lint, write: Write) -> None:
    path = write("claim.yaml", GOOD)
    code, out, _ = linted("--kubernetes-version", "1.33", path)
    assert code == 1
    assert "for 1.33 use resource.k8s.io/v1beta2" in out
    assert linted("--kubernetes-version", "1.20", path)[0] == 2

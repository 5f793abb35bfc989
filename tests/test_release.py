# SPDX-License-Identifier: Apache-2.0
"""What `make release` writes: read by Helm's own engine from a registry, and by the rules of krew.

The rules of krew are those of internal/index/validation/validate.go (commit db921d5). The wheel is a stand-in, because
building and installing one takes packages from PyPI.
"""

import contextlib
import hashlib
import http.server
import importlib
import json
import os
import re
import shutil
import subprocess
import tarfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner

from dra_driver import __version__
from release import CHART, release

pytestmark = pytest.mark.filterwarnings("ignore:.*make_default_short_help:DeprecationWarning")  # of click-man

URL = "https://downloads.example.com/v1"
WHEEL = f"dra_driver_gpu-{__version__}-py3-none-any.whl"
TGZ = f"dra-driver-gpu-{__version__}.tgz"


def made(folder: Path, *arguments: str) -> str:
    """A release in a folder; the output of the command."""
    folder.mkdir()
    (folder / WHEEL).write_text("a wheel", encoding="utf-8")
    environment = {"SOURCE_DATE_EPOCH": "1700000000"}
    done = CliRunner(env=environment).invoke(release, ["--folder", str(folder), "--url", URL, *arguments])
    assert done.exit_code == 0, done.output
    return done.output


@pytest.fixture(scope="module")
def dist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("release") / "dist"
    made(folder)
    return folder


def contents(folder: Path) -> dict[str, str]:
    files = (path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def test_the_same_sources_give_the_same_files(dist: Path, tmp_path: Path) -> None:
    made(tmp_path / "again")
    assert contents(tmp_path / "again") == contents(dist)
    sums = dict(line.split("  ")[::-1] for line in (dist / "SHA256SUMS").read_text(encoding="utf-8").splitlines())
    assert set(sums) == {WHEEL, TGZ, f"dra-dryrun-{__version__}.tar.gz"}
    assert sums.items() <= contents(dist).items()


def test_without_the_wheel_it_says_what_to_run(tmp_path: Path) -> None:
    done = CliRunner().invoke(release, ["--folder", str(tmp_path), "--url", URL])
    assert done.exit_code == 1
    assert f"{WHEEL} is missing: run `make release`" in done.output


@contextlib.contextmanager
def registry(layout: Path) -> Iterator[str]:
    """A registry that has the chart of an OCI layout, and its address."""
    (tag,) = json.loads((layout / "index.json").read_bytes())["manifests"]

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            """A tag, a manifest or a blob."""
            found = re.fullmatch(r"/v2/charts/dra-driver-gpu/(?:manifests|blobs)/(.+)", self.path)
            name = found[1] if found else ""
            name = tag["digest"] if name in tag["annotations"].values() else name
            blob = layout / "blobs" / name.replace(":", "/")
            if not name or not blob.is_file():
                self.send_response(404 if found else 200)
                self.send_header("Content-Length", "0")
                self.end_headers()
                return
            data = blob.read_bytes()
            self.send_response(200)
            self.send_header("Content-Type", tag["mediaType"] if name == tag["digest"] else "application/octet-stream")
            self.send_header("Content-Length", str(len(data)))
            self.send_header("Docker-Content-Digest", name)
            self.end_headers()
            if self.command == "GET":
                self.wfile.write(data)

        do_HEAD = do_GET  # noqa: N815

        def log_message(self, *_: Any) -> None:
            """Nothing is printed."""

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


def test_helm_pulls_the_chart_from_a_registry_that_has_the_layout(dist: Path, tmp_path: Path) -> None:
    helm = pytest.importorskip("helm_python", reason="Helm's engine has wheels for x86-64 only")
    assert json.loads((dist / "chart/oci-layout").read_bytes()) == {"imageLayoutVersion": "1.0.0"}
    for blob in (dist / "chart/blobs/sha256").iterdir():
        assert hashlib.sha256(blob.read_bytes()).hexdigest() == blob.name
    with registry(dist / "chart") as address:
        reference = f"oci://{address}/charts/dra-driver-gpu"
        helm.pull(reference, version=__version__, destination=tmp_path, plain_http=True)
    assert (tmp_path / TGZ).read_bytes() == (dist / TGZ).read_bytes()
    with helm.Chart.load_archive((tmp_path / TGZ).read_bytes()) as chart:
        assert (chart.name, chart.version) == ("dra-driver-gpu", __version__)
        assert len(chart.templates) > 10


def test_the_package_has_every_file_of_the_chart(dist: Path) -> None:
    with tarfile.open(dist / TGZ) as archive:
        files = {one.name.removeprefix("dra-driver-gpu/"): one for one in archive.getmembers()}
    assert set(files) == {str(path.relative_to(CHART)) for path in CHART.rglob("*") if path.is_file()}
    assert {(one.mtime, one.mode, one.uid) for one in files.values()} == {(1700000000, 0o644, 0)}


@pytest.mark.skipif(shutil.which("gpg") is None, reason="gpg is not on PATH")
def test_helm_verifies_the_provenance_of_a_signed_chart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    helm = pytest.importorskip("helm_python", reason="Helm's engine has wheels for x86-64 only")
    home = tmp_path / "gpg"
    home.mkdir(mode=0o700)
    monkeypatch.setenv("GNUPGHOME", str(home))

    def gpg(*words: str) -> bytes:
        return subprocess.run(["gpg", "--batch", *words], capture_output=True, check=True, timeout=60).stdout

    try:
        gpg("--passphrase", "", "--quick-gen-key", "releases@example.com", "rsa2048", "sign", "never")
        made(tmp_path / "dist", "--sign-key", "releases@example.com")
        (tmp_path / "keyring").write_bytes(gpg("--export"))
    finally:
        subprocess.run(["gpgconf", "--kill", "all"], check=False, timeout=60)
    chart = tmp_path / "dist" / TGZ
    assert helm.verify(chart, tmp_path / "keyring")["signed_by"] == ["releases@example.com"]
    (tag,) = json.loads((tmp_path / "dist/chart/index.json").read_bytes())["manifests"]
    manifest = json.loads((tmp_path / "dist/chart/blobs" / tag["digest"].replace(":", "/")).read_bytes())
    assert manifest["layers"][1]["mediaType"] == "application/vnd.cncf.helm.chart.provenance.v1.prov"
    chart.write_bytes(chart.read_bytes() + b"changed")
    with pytest.raises(helm.HelmError):
        helm.verify(chart, tmp_path / "keyring")


def krew(dist: Path) -> dict[str, Any]:
    return dict(yaml.safe_load((dist / "krew/dra-dryrun.yaml").read_text(encoding="utf-8")))


def test_the_manifest_keeps_the_rules_of_krew(dist: Path) -> None:
    manifest = krew(dist)
    assert (manifest["apiVersion"], manifest["kind"]) == ("krew.googlecontainertools.github.com/v1alpha2", "Plugin")
    assert re.fullmatch(r"[\w-]+", manifest["metadata"]["name"])
    spec = manifest["spec"]
    assert re.fullmatch(r"v\d+\.\d+\.\d+", spec["version"])
    assert 0 < len(spec["shortDescription"]) <= 50
    assert "\n" not in spec["shortDescription"]
    (platform,) = spec["platforms"]
    assert set(platform["selector"]["matchLabels"]) <= {"os", "arch"}
    archive = dist / platform["uri"].removeprefix(f"{URL}/")
    assert platform["sha256"] == hashlib.sha256(archive.read_bytes()).hexdigest()
    with tarfile.open(archive) as files:
        assert files.getmember(platform["bin"]).mode == 0o755
        assert set(files.getnames()) == {"LICENSE", WHEEL, platform["bin"]}


PYTHON = """#!/bin/sh
# `python3 -m venv FOLDER`, and the Python of such a folder, whose pip may fail.
echo "$*" >>"$LOG"
if [ "$2" = venv ]; then mkdir -p "$3/bin"; cp "$0" "$3/bin/python"; exit; fi
[ -z "${FAILS-}" ] || exit 1
printf '#!/bin/sh\\necho "ran $*"\\n' >"$(dirname "$0")/kubectl-dra_dryrun"
chmod +x "$(dirname "$0")/kubectl-dra_dryrun"
"""


def test_the_plugin_installs_itself_once_and_again_after_a_failure(dist: Path, tmp_path: Path) -> None:
    store, log, python = tmp_path / "store", tmp_path / "log", tmp_path / "python3"
    with tarfile.open(dist / f"dra-dryrun-{__version__}.tar.gz") as archive:
        archive.extractall(store, filter="data")
    python.write_text(PYTHON, encoding="utf-8")
    python.chmod(0o755)
    link = tmp_path / "kubectl-dra_dryrun"  # as krew makes one
    link.symlink_to(store / "kubectl-dra_dryrun")
    environment = {**os.environ, "PYTHON": str(python), "LOG": str(log), "XDG_DATA_HOME": str(tmp_path / "data")}

    def run(**more: str) -> "subprocess.CompletedProcess[str]":
        return subprocess.run(
            [link, "fit", "a b"], env={**environment, **more}, capture_output=True, text=True, timeout=60, check=False
        )

    assert run(FAILS="1").returncode != 0
    first, second = run(), run()
    assert (first.stdout, second.stdout) == ("ran fit a b\n", "ran fit a b\n")
    assert (f"installing dra-dryrun {__version__}" in first.stderr, second.stderr) == (True, "")
    installed = [line for line in log.read_text(encoding="utf-8").splitlines() if "pip install" in line]
    assert len(installed) == 2
    assert installed[-1].endswith(f"{store}/{WHEEL}[dryrun]")


def test_every_command_has_a_manual_page(dist: Path) -> None:
    scripts = {"dra-dryrun": "dra_driver.dryrun.main", "dra-sandbox": "dra_driver.sandbox.main"}
    pages = {path.stem: path.read_text(encoding="utf-8") for path in (dist / "man").iterdir()}
    for name, module in scripts.items():
        group = getattr(importlib.import_module(module), name.removeprefix("dra-"))
        assert {f"{name}-{one}" for one in group.commands} <= set(pages)
    assert all(text.startswith(".TH ") and "\n.SH NAME\n" in text for text in pages.values())
    assert r"\-\-until\-fits" in pages["dra-dryrun-fit"]

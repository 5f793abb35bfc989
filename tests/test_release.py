# SPDX-License-Identifier: Apache-2.0
"""What `make release` writes: read by Helm's own engine from a registry, and by the rules of krew.

The rules of krew are those of internal/index/validation/validate.go (commit db921d5). The wheel is a stand-in, because
building and installing one takes packages from PyPI.
"""

import hashlib
import os
import re
import shutil
import subprocess
import tarfile
from pathlib import Path
from typing import Any

import click
import pytest
import yaml

from dra_driver import __version__
from tests.docs.manuals import COMMANDS, write_manuals
from tests.docs.registry import registry

pytestmark = pytest.mark.node

ROOT = Path(__file__).parents[1]
CHART = ROOT / "charts/dra-driver-gpu"
URL = "https://downloads.example.com/v1"
WHEEL = f"dra_driver_gpu-{__version__}-py3-none-any.whl"
TGZ = f"dra-driver-gpu-{__version__}.tgz"

HELM = pytest.mark.skipif(shutil.which("helm") is None, reason="helm is not on PATH")


def make(target: str, folder: Path, **variables: str) -> "subprocess.CompletedProcess[str]":
    """Runs a target of the Makefile in a copy of what it reads, with `folder` as the folder of the release."""
    checkout = folder.with_name("checkout")
    if not checkout.exists():
        checkout.mkdir()
        for name in ("Makefile", "LICENSE", "pyproject.toml"):
            shutil.copy(ROOT / name, checkout)
        shutil.copytree(ROOT / "packaging", checkout / "packaging")
        shutil.copytree(CHART, checkout / "charts/dra-driver-gpu")
        (checkout / "dra_driver").mkdir()
        shutil.copy(ROOT / "dra_driver/__init__.py", checkout / "dra_driver")
    words = [f"{name}={text}" for name, text in {"DIST": str(folder), **variables}.items()]
    return subprocess.run(
        ["make", "--always-make", "--old-file=.venv/.ready", target, *words],
        cwd=checkout,
        env={**os.environ, "SOURCE_DATE_EPOCH": "1700000000"},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )


def made(folder: Path, *targets: str, **variables: str) -> Path:
    """The folder of a release, after these targets."""
    folder.mkdir(parents=True)
    (folder / WHEEL).write_text("a wheel", encoding="utf-8")
    for target in targets:
        done = make(target, folder, **variables)
        assert done.returncode == 0, done.stdout + done.stderr
    return folder


@pytest.fixture(scope="module")
def plugin(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the plugin for krew."""
    return made(tmp_path_factory.mktemp("plugin") / "dist", "krew", RELEASE_URL=URL)


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the packaged chart."""
    if shutil.which("helm") is None:
        pytest.skip("helm is not on PATH")
    return made(tmp_path_factory.mktemp("package") / "dist", "chart")


def test_the_chart_has_the_version_of_the_code() -> None:
    metadata = yaml.safe_load((CHART / "Chart.yaml").read_text(encoding="utf-8"))
    assert metadata["version"] == __version__
    assert metadata["appVersion"] == __version__


def test_the_changelog_has_the_version_of_the_code() -> None:
    assert f"\n## {__version__}" in (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")


def test_the_same_sources_give_the_same_plugin(plugin: Path, tmp_path: Path) -> None:
    again = made(tmp_path / "dist", "krew", RELEASE_URL=URL)
    assert contents(again) == contents(plugin)


def test_the_same_sources_give_the_same_package_at_another_time(package: Path, tmp_path: Path) -> None:
    again = made(tmp_path / "dist", "chart")
    for path in (tmp_path / "checkout/charts").rglob("*"):
        os.utime(path, (1, 1))
    done = make("chart", again)
    assert done.returncode == 0, done.stderr
    assert contents(again) == contents(package)


def contents(folder: Path) -> dict[str, str]:
    """Name -> digest of each file."""
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in folder.iterdir() if path.is_file()}


def test_without_the_wheel_make_says_what_to_run(tmp_path: Path) -> None:
    done = make("krew", tmp_path / "dist", RELEASE_URL=URL)
    assert done.returncode != 0
    assert f"{WHEEL} is missing: run make build" in done.stdout


def test_without_an_address_make_asks_where_the_release_will_be(tmp_path: Path) -> None:
    done = make("release", tmp_path / "dist")
    assert done.returncode != 0
    assert "RELEASE_URL=https://" in done.stdout


def test_the_address_in_pyproject_gives_the_address_of_the_release(tmp_path: Path) -> None:
    make("version", tmp_path / "dist")
    pyproject = tmp_path / "checkout/pyproject.toml"
    text = pyproject.read_text(encoding="utf-8")
    assert 'repository = ""' in text
    pyproject.write_text(
        text.replace('repository = ""', 'repository = "https://git.example.com/a/b"'), encoding="utf-8"
    )
    made(tmp_path / "dist", "krew")
    (platform,) = krew(tmp_path / "dist")["spec"]["platforms"]
    assert platform["uri"].startswith(f"https://git.example.com/a/b/releases/download/v{__version__}/dra-dryrun-")


def test_helm_pushes_the_package_to_a_registry(package: Path) -> None:
    with registry() as server:
        charts = {"CHARTS": f"oci://{server.address}/charts", "PUSH_FLAGS": "--plain-http"}
        done = make("push-chart", package, **charts)
        assert done.returncode == 0, done.stderr
        manifest = server.manifests[f"charts/dra-driver-gpu:{__version__}"]
    (layer,) = manifest["layers"]
    assert layer["mediaType"] == "application/vnd.cncf.helm.chart.content.v1.tar+gzip"
    assert layer["digest"] == f"sha256:{contents(package)[TGZ]}"


def test_the_package_has_every_file_of_the_chart(package: Path) -> None:
    with tarfile.open(package / TGZ) as archive:
        files = {member.name.removeprefix("dra-driver-gpu/"): member for member in archive.getmembers()}
    ignored = set((CHART / "ci").iterdir())
    assert set(files) == {str(path.relative_to(CHART)) for path in set(CHART.rglob("*")) - ignored if path.is_file()}
    assert {(member.mtime, member.uid) for member in files.values()} == {(1700000000, 0)}


@HELM
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
        (tmp_path / "secret").write_bytes(gpg("--export-secret-keys"))
        (tmp_path / "keyring").write_bytes(gpg("--export"))
    finally:
        subprocess.run(["gpgconf", "--kill", "all"], check=False, timeout=60)
    key = {"SIGN_KEY": "releases@example.com", "KEYRING": str(tmp_path / "secret")}
    chart = made(tmp_path / "dist", "chart", **key) / TGZ
    assert helm.verify(chart, tmp_path / "keyring")["signed_by"] == ["releases@example.com"]
    chart.write_bytes(chart.read_bytes() + b"changed")
    with pytest.raises(helm.HelmError):
        helm.verify(chart, tmp_path / "keyring")


def krew(dist: Path) -> dict[str, Any]:
    return dict(yaml.safe_load((dist / "dra-dryrun.yaml").read_text(encoding="utf-8")))


def test_the_manifest_keeps_the_rules_of_krew(plugin: Path) -> None:
    manifest = krew(plugin)
    assert (manifest["apiVersion"], manifest["kind"]) == ("krew.googlecontainertools.github.com/v1alpha2", "Plugin")
    assert re.fullmatch(r"[\w-]+", manifest["metadata"]["name"])
    spec = manifest["spec"]
    assert re.fullmatch(r"v\d+\.\d+\.\d+", spec["version"])
    assert 0 < len(spec["shortDescription"]) <= 50
    assert "\n" not in spec["shortDescription"]
    (platform,) = spec["platforms"]
    assert set(platform["selector"]["matchLabels"]) <= {"os", "arch"}
    archive = plugin / platform["uri"].removeprefix(f"{URL}/")
    assert platform["sha256"] == hashlib.sha256(archive.read_bytes()).hexdigest()
    with tarfile.open(archive) as files:
        assert files.getmember(f"./{platform['bin']}").mode == 0o755
        assert {Path(name).name for name in files.getnames()} == {"", "LICENSE", WHEEL, platform["bin"]}


PYTHON = """#!/bin/sh
# `python3 -m venv FOLDER`, and the Python of such a folder, whose pip may fail.
echo "$*" >>"$LOG"
if [ "$2" = venv ]; then mkdir -p "$3/bin"; cp "$0" "$3/bin/python"; exit; fi
[ -z "${FAILS-}" ] || exit 1
printf '#!/bin/sh\\necho "ran $*"\\n' >"$(dirname "$0")/kubectl-dra_dryrun"
chmod +x "$(dirname "$0")/kubectl-dra_dryrun"
"""


def test_the_plugin_installs_itself_once_and_again_after_a_failure(plugin: Path, tmp_path: Path) -> None:
    store, log, python = tmp_path / "store", tmp_path / "log", tmp_path / "python3"
    store.mkdir()
    subprocess.run(["tar", "-xzf", plugin / f"dra-dryrun-{__version__}.tar.gz", "-C", store], check=True)
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
    assert f"installing dra-dryrun {__version__}" in first.stderr
    assert second.stderr == ""
    installed = [line for line in log.read_text(encoding="utf-8").splitlines() if "pip install" in line]
    assert len(installed) == 2
    assert installed[-1].endswith(f"{store}/{WHEEL}[dryrun]")


@pytest.mark.filterwarnings("ignore:.*make_default_short_help:DeprecationWarning")  # of click-man
def test_every_command_has_a_manual_page(tmp_path: Path) -> None:
    write_manuals(tmp_path)
    pages = {path.stem: path.read_text(encoding="utf-8") for path in tmp_path.iterdir()}
    for name, command in COMMANDS.items():
        assert isinstance(command, click.Group)
        assert {name, *(f"{name}-{subcommand}" for subcommand in command.commands)} <= set(pages)
    assert all(text.startswith(".TH ") and "\n.SH NAME\n" in text for text in pages.values())
    assert r"\-\-until\-fits" in pages["dra-dryrun-fit"]

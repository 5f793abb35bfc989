# SPDX-License-Identifier: Apache-2.0
"""What is published of a version: `make release`. All files are written to one folder, and nothing is sent anywhere.

- `dra-driver-gpu-VERSION.tgz`: the Helm chart. With a signing key, also its provenance (`.prov`) for `helm verify`
- `chart/`: the same two files as an OCI image layout, with the media types that Helm uses in registries
- `dra-dryrun-VERSION.tar.gz` and `krew/dra-dryrun.yaml`: the kubectl plugin for krew
- `man/`: manual pages of the commands
- `SHA256SUMS`: the digests of all files beside it, also of the wheel and of the SBOM, which `make` has put there before

The same commit gives the same files: all times are `SOURCE_DATE_EPOCH`. Only a signature is different each time.
"""

import datetime
import gzip
import hashlib
import inspect
import io
import json
import os
import shutil
import subprocess
import tarfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

import click
import yaml
from click_man.core import write_man_pages

from dra_driver import __version__
from dra_driver.dryrun.main import dryrun
from dra_driver.sandbox.main import sandbox
from kubeletplugin.main import kubeletplugin

ROOT: Final = Path(__file__).parent
CHART: Final = ROOT / "charts/dra-driver-gpu"
_HELM: Final = "application/vnd.cncf.helm"
_OCI: Final = "application/vnd.oci.image"
_GPG_SECONDS: Final = 120  # somebody may have to type a passphrase

LAUNCHER: Final = """\
#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# The first run installs the wheel beside this file, with its dependencies from PyPI, into a folder of this user.
set -eu
here=$(dirname "$(readlink -f "$0")")
home="${XDG_DATA_HOME:-$HOME/.local/share}/dra-dryrun/VERSION"
if [ ! -e "$home/complete" ]; then
    echo "installing dra-dryrun VERSION into $home" >&2
    rm -rf "$home"
    "${PYTHON:-python3}" -m venv "$home"
    "$home/bin/python" -m pip install --quiet --disable-pip-version-check "$here/WHEEL[dryrun]" >&2
    touch "$home/complete"
fi
exec "$home/bin/kubectl-dra_dryrun" "$@"
"""


@click.command()
@click.option("--folder", type=click.Path(path_type=Path, file_okay=False, exists=True), required=True)
@click.option("--url", required=True, help="Where the files of the folder will be published, for the manifest of krew.")
@click.option("--sign-key", help="Sign the chart with this key of gpg.")
def release(folder: Path, url: str, sign_key: str | None) -> None:
    """Write the files of a release to a folder that has the wheel of this version."""
    wheel = folder / f"dra_driver_gpu-{__version__}-py3-none-any.whl"
    if not wheel.is_file():
        raise click.ClickException(f"{wheel} is missing: run `make release`, which builds it first")
    chart = write_chart(folder)
    provenance = sign(chart, sign_key) if sign_key else None
    write_layout(folder / "chart", chart, provenance)
    write_krew(folder, wheel, url)
    write_manuals(folder / "man")
    files = sorted(path for path in folder.iterdir() if path.is_file() and path.name != "SHA256SUMS")
    sums = "".join(f"{_digest(path.read_bytes())}  {path.name}\n" for path in files)
    (folder / "SHA256SUMS").write_text(sums, encoding="utf-8")
    click.echo(f"wrote version {__version__} to {folder}; nothing was published")


def write_chart(folder: Path) -> Path:
    """The packaged chart."""
    metadata = _metadata()
    if {metadata["version"], metadata["appVersion"]} != {__version__}:
        raise click.ClickException(f"{CHART}/Chart.yaml: version and appVersion must be {__version__}")
    files = (path for path in sorted(CHART.rglob("*")) if path.is_file())
    members = [(f"{CHART.name}/{path.relative_to(CHART)}", path.read_bytes(), 0o644) for path in files]
    return _archive(folder / f"{CHART.name}-{__version__}.tgz", members)


def sign(chart: Path, key: str) -> Path:
    """The provenance of the packaged chart, in the format of Helm's pkg/provenance."""
    digest = _digest(chart.read_bytes())
    text = f"{(CHART / 'Chart.yaml').read_text(encoding='utf-8')}\n...\nfiles:\n  {chart.name}: sha256:{digest}\n"
    provenance = chart.with_name(f"{chart.name}.prov")
    command = ["gpg", "--batch", "--yes", "--local-user", key, "--digest-algo", "SHA512"]
    try:
        subprocess.run(  # noqa: S603 - the words of whoever makes the release
            [*command, "--output", str(provenance), "--clearsign"],
            input=text.encode(),
            check=True,
            timeout=_GPG_SECONDS,
        )
    except (OSError, subprocess.SubprocessError) as error:
        raise click.ClickException(f"the chart could not be signed: {error}") from None
    return provenance


def write_layout(folder: Path, chart: Path, provenance: Path | None) -> None:
    """The chart and its provenance as an OCI image layout."""
    shutil.rmtree(folder, ignore_errors=True)
    blobs = folder / "blobs/sha256"
    blobs.mkdir(parents=True)

    def blob(media_type: str, data: bytes) -> dict[str, Any]:
        (blobs / _digest(data)).write_bytes(data)
        return {"mediaType": media_type, "digest": f"sha256:{_digest(data)}", "size": len(data)}

    metadata = _metadata()
    layers = [blob(f"{_HELM}.chart.content.v1.tar+gzip", chart.read_bytes())]
    if provenance is not None:
        layers.append(blob(f"{_HELM}.chart.provenance.v1.prov", provenance.read_bytes()))
    created = datetime.datetime.fromtimestamp(_epoch(), datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    annotations = {"title": metadata["name"], "version": __version__, "description": metadata["description"]}
    manifest = {
        "schemaVersion": 2,
        "mediaType": f"{_OCI}.manifest.v1+json",
        "config": blob(f"{_HELM}.config.v1+json", _json(metadata)),
        "layers": layers,
        "annotations": {
            f"org.opencontainers.image.{name}": text for name, text in {**annotations, "created": created}.items()
        },
    }
    tag = {"annotations": {"org.opencontainers.image.ref.name": __version__}}
    index = {
        "schemaVersion": 2,
        "mediaType": f"{_OCI}.index.v1+json",
        "manifests": [blob(f"{_OCI}.manifest.v1+json", _json(manifest)) | tag],
    }
    (folder / "index.json").write_bytes(_json(index))
    (folder / "oci-layout").write_bytes(_json({"imageLayoutVersion": "1.0.0"}))


def write_krew(folder: Path, wheel: Path, url: str) -> None:
    """The archive of the kubectl plugin, and its manifest."""
    launcher = LAUNCHER.replace("VERSION", __version__).replace("WHEEL", wheel.name)
    members = [
        ("LICENSE", (ROOT / "LICENSE").read_bytes(), 0o644),
        (wheel.name, wheel.read_bytes(), 0o644),
        ("kubectl-dra_dryrun", launcher.encode(), 0o755),
    ]
    archive = _archive(folder / f"dra-dryrun-{__version__}.tar.gz", members)
    manifest = {
        "apiVersion": "krew.googlecontainertools.github.com/v1alpha2",
        "kind": "Plugin",
        "metadata": {"name": "dra-dryrun"},
        "spec": {
            "version": f"v{__version__}",
            "homepage": url,
            "shortDescription": "Tell where claims and pods with GPUs fit",
            "description": inspect.cleandoc(dryrun.help or ""),
            "caveats": "Needs Python 3.11 or newer with venv. The first run installs packages from PyPI for this user.",
            "platforms": [
                {
                    "selector": {"matchLabels": {"os": "linux"}},
                    "uri": f"{url.rstrip('/')}/{archive.name}",
                    "sha256": _digest(archive.read_bytes()),
                    "bin": "kubectl-dra_dryrun",
                    "files": [{"from": "*", "to": "."}],
                }
            ],
        },
    }
    (folder / "krew").mkdir(exist_ok=True)
    (folder / "krew/dra-dryrun.yaml").write_text(yaml.safe_dump(manifest, sort_keys=False), encoding="utf-8")


def write_manuals(folder: Path) -> None:
    """A page for each command and subcommand."""
    folder.mkdir(exist_ok=True)
    day = datetime.datetime.fromtimestamp(_epoch(), datetime.UTC).strftime("%Y-%m-%d")
    for command in (dryrun, sandbox, kubeletplugin):
        write_man_pages(str(command.name), command, version=__version__, target_dir=str(folder), date=day)


def _archive(target: Path, members: Iterable[tuple[str, bytes, int]]) -> Path:
    """A tar file, compressed with gzip, with files of root (name, content, mode)."""
    with (
        target.open("wb") as stream,
        gzip.GzipFile("", "wb", fileobj=stream, mtime=_epoch()) as packed,
        tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as archive,
    ):
        for name, content, mode in members:
            entry = tarfile.TarInfo(name)
            entry.size, entry.mode, entry.mtime = len(content), mode, _epoch()
            archive.addfile(entry, io.BytesIO(content))
    return target


def _metadata() -> dict[str, Any]:
    """Chart.yaml."""
    return dict(yaml.safe_load((CHART / "Chart.yaml").read_text(encoding="utf-8")))


def _epoch() -> int:
    return int(os.environ.get("SOURCE_DATE_EPOCH", "0"))


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def _json(value: object) -> bytes:
    return json.dumps(value, sort_keys=True).encode()


if __name__ == "__main__":
    release()

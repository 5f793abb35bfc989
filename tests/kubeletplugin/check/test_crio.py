# SPDX-License-Identifier: Apache-2.0
"""The folders that CRI-O reads CDI specs from."""

from pathlib import Path

import pytest

from kubeletplugin.check.host import write
from kubeletplugin.check.runtime import CONFIG, CrioFacts, crio_drop_in, crio_findings, read_crio
from kubeletplugin.finding import Level

from .support import make_host, only

TABLE = "[crio.runtime]\n"


def facts_of(root: Path, files: dict[str, str]) -> CrioFacts:
    return read_crio(make_host(root, files), CONFIG, "/var/run/cdi")


@pytest.mark.parametrize(
    ("files", "level", "says"),
    [
        ({}, "pass", "always enabled, reads /var/run/cdi (the default)"),
        ({CONFIG: TABLE + 'cdi_spec_dirs = [\n  "/run/cdi",\n]\n'}, "pass", "/etc/crio/crio.conf, line 2"),
        (
            {CONFIG: TABLE + 'cdi_spec_dirs = ["/etc/cdi"]\n'},
            "fail",
            "CRI-O reads /etc/cdi (/etc/crio/crio.conf, line 2)",
        ),
        ({CONFIG: TABLE + "cdi_spec_dirs = []\n"}, "fail", "CRI-O reads none"),
        ({CONFIG: TABLE + "cdi_spec_dirs = 1\n"}, "fail", "not a list of folders (/etc/crio/crio.conf, line 2)"),
        (
            {
                CONFIG: TABLE + 'cdi_spec_dirs = ["/etc/cdi"]\n',
                f"{CONFIG}.d/10": TABLE + 'cdi_spec_dirs = ["/run/cdi"]\n',
            },
            "pass",
            "/etc/crio/crio.conf.d/10, line 2",
        ),
        ({f"{CONFIG}.d/10": TABLE, f"{CONFIG}.d/20": "[crio]\n"}, "pass", "the default"),
        ({f"{CONFIG}.d/10": "[[\n"}, "warn", "/etc/crio/crio.conf.d/10 cannot be read: not TOML"),
    ],
)
def test_what_crio_makes_of_its_files(tmp_path: Path, files: dict[str, str], level: str, says: str) -> None:
    found = only(crio_findings(facts_of(tmp_path, files)))
    assert says in found.text
    assert str(found.level) == level


def test_fix_adds_our_folder_in_a_file_of_its_own(tmp_path: Path) -> None:
    files = {CONFIG: TABLE + 'cdi_spec_dirs = ["/etc/cdi", "/opt/cdi"]\n'}
    facts = facts_of(tmp_path, files)
    drop_in = crio_drop_in(facts)
    assert drop_in is not None
    assert drop_in.path == "/etc/crio/crio.conf.d/99-dra-driver-gpu-cdi.conf"
    assert drop_in.body == '[crio.runtime]\ncdi_spec_dirs = ["/etc/cdi", "/opt/cdi", "/var/run/cdi"]\n'
    assert drop_in.path in only(crio_findings(facts)).remedy
    host = make_host(tmp_path / "again", files)
    assert write(host, drop_in)
    fixed = read_crio(host, CONFIG, "/var/run/cdi")
    assert only(crio_findings(fixed)).level is Level.PASS
    assert crio_drop_in(fixed) is None


@pytest.mark.parametrize("files", [{}, {CONFIG: "[["}])
def test_there_is_nothing_to_fix_where_nothing_is_wrong_or_known(tmp_path: Path, files: dict[str, str]) -> None:
    assert crio_drop_in(facts_of(tmp_path, files)) is None

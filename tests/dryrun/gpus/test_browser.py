# SPDX-License-Identifier: Apache-2.0
"""The page of `dra-dryrun gpus` in a real browser."""

from pathlib import Path

import pytest

from dra_driver.dryrun.gpus.collect import used_nodes
from dra_driver.dryrun.gpus.report import GpusReport
from dra_driver.dryrun.gpus.users import ConsumerPod
from dra_driver.kube.resource.codec import BY_API_VERSION, decode
from dra_driver.scheduler.allocator import Features
from tests.bench.cluster import objects
from tests.support.browser import NEEDS_BROWSER, SCREENS, seen

pytestmark = [pytest.mark.node, NEEDS_BROWSER]
PAPER = 718
"""The width of A4 without margins of 1 cm, in CSS pixels."""


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """20 nodes with MIG devices, shares, virtual machines and devices of another driver."""
    made = objects(20, 100)
    decoded = [decode(value) for value in made if value["apiVersion"] in BY_API_VERSION]
    pods = [ConsumerPod.of_object(value) for value in made if value["kind"] == "Pod"]
    report = GpusReport("a file", used_nodes(decoded, pods, Features()))
    path = tmp_path_factory.mktemp("gpus") / "gpus.html"
    path.write_text(report.page(), encoding="utf-8")
    return path


def test_page_needs_no_network_and_shows_every_user(address: str, page: Path) -> None:
    shown = seen(address, page, picture=True)  # which makes the browser paint all of it
    assert shown.requests == [page.as_uri()]
    assert shown.complaints == []
    assert "students/notebook-0-0" in shown.facts["shown"]
    assert "Deployment embeddings" in shown.facts["shown"]


def test_page_can_be_read_on_every_screen(address: str, page: Path, subtests: pytest.Subtests) -> None:
    for scheme, width in SCREENS:
        with subtests.test(scheme=scheme, width=width):
            facts = seen(address, page, scheme, width).facts
            assert facts["width"] <= width
            assert facts["sideways"] == 0 or width > 400
            assert facts["contrast"] >= 4.5


def test_nothing_is_cut_off_in_print(address: str, page: Path) -> None:
    facts = seen(address, page, width=PAPER, media="print").facts
    assert facts["width"] <= PAPER
    assert facts["sideways"] == 0

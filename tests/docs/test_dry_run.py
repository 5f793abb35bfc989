# SPDX-License-Identifier: Apache-2.0
"""The guide to dry runs and its transcript name the same questions, and what dry runs leave out."""

import re

from .commands import COMMANDS, ROOT


def test_the_transcript_has_every_question_that_dry_runs_answer() -> None:
    table = (ROOT / "docs/how-to/dry-run.md").read_text(encoding="utf-8").partition("## ")[0]
    rows = [line.split("|")[2] for line in table.splitlines() if line.startswith("| ")][1:]
    shown = [one.text for one in COMMANDS if one.page == "dry-run-transcript.md"]
    assert len(rows) == 10
    for row in rows:
        question = re.findall(r"`([^`]*)`", row)[0].replace("pod/NAME", "pod/")
        asked = re.findall(r"--[a-z-]+|pod/|\b(?:capacity|cel|gpus|lint|snapshot)\b", question)
        assert any(all(word in text for word in asked) for text in shown), row
    assert all(one.output for one in COMMANDS if one.page == "dry-run-transcript.md")


def test_dry_run_page_lists_what_is_not_evaluated() -> None:
    page = (ROOT / "docs/how-to/dry-run.md").read_text(encoding="utf-8").partition("| evaluated | not evaluated |")[2]
    left_out = "\n".join(line.split("|")[2] for line in page.splitlines() if line.startswith("| "))
    for what in ("scores", "autoscaler", "gangs", "feature gates that are not default"):
        assert what in left_out

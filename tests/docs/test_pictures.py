# SPDX-License-Identifier: Apache-2.0
"""The pictures of the documentation are text in blocks of the language `mermaid`, which Mermaid can draw.

Mermaid is the file that `make site` has installed, and it runs in the browser that is on PATH.
"""

import html
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from .commands import PAGES, blocks

PICTURES = [
    (f"{path.name}:{line}", content)
    for path in PAGES
    for language, line, content in blocks(path.read_text(encoding="utf-8"))
    if language == "mermaid"
]
MERMAID = Path(sys.prefix) / "site/mermaid.min.js"
BROWSER = shutil.which("chromium-headless-shell")

PAGE = """<!doctype html><meta charset="utf-8"><script src="MERMAID"></script><pre id="answer"></pre><script>
mermaid.initialize({startOnLoad: false});
(async () => {
  const answer = {};
  for (const [name, text] of PICTURES) {
    try { await mermaid.render("picture", text); answer[name] = ""; }
    catch (error) { answer[name] = String(error); }
  }
  document.getElementById("answer").textContent = JSON.stringify(answer);
})();
</script>"""


def test_four_subjects_have_a_picture() -> None:
    assert {name.partition(":")[0] for name, _ in PICTURES} >= {
        "architecture.md",
        "compute-domains.md",
        "devices.md",
        "life-of-a-claim.md",
    }


@pytest.mark.skipif(not MERMAID.exists(), reason="make site has not installed Mermaid")
@pytest.mark.skipif(BROWSER is None, reason="chromium-headless-shell is not on PATH")
def test_mermaid_draws_every_picture(tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    text = PAGE.replace("MERMAID", MERMAID.as_uri()).replace("PICTURES", json.dumps(PICTURES))
    page.write_text(text, encoding="utf-8")
    options = ["--no-sandbox", "--disable-gpu", "--virtual-time-budget=60000", "--dump-dom"]
    done = subprocess.run(
        [str(BROWSER), *options, page.as_uri()], capture_output=True, text=True, timeout=240, check=False
    )
    found = re.search(r'<pre id="answer">(.*?)</pre>', done.stdout, re.DOTALL)
    assert found, done.stderr[-2000:]
    assert json.loads(html.unescape(found[1])) == dict.fromkeys(dict(PICTURES), "")

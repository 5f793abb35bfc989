# SPDX-License-Identifier: Apache-2.0
"""What the site does differently from GitHub, which shows the same files.

- Sections have the anchors that GitHub gives them.
- A link to a file outside of docs/ leads to the repository, whose address is `repository` in pyproject.toml. As long as
  this is empty, the site shows the name of the file without a link.
"""

import os
import re
import tomllib
from pathlib import Path, PurePosixPath

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
REPOSITORY = PROJECT["tool"]["dra-driver-gpu"]["repository"]
LINK = re.compile(r"\[((?:[^\[\]`]|`[^`]*`)*)\]\((?!https?:|#)([^)#\s]+)(#[^)\s]*)?\)")


def anchor(heading: str, separator: str) -> str:
    """The anchor of a section on GitHub. Unlike that of MkDocs, it keeps several separators in a row."""
    return re.sub(r"[^\w -]", "", heading.lower()).replace(" ", separator)


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Set what the configuration file cannot say."""
    config.mdx_configs["toc"]["slugify"] = anchor
    if REPOSITORY:
        config.repo_url = REPOSITORY
    return config


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """The text of a page, whose links to files of the repository lead there."""
    folder = PurePosixPath("docs", page.file.src_uri).parent

    def link(match: re.Match[str]) -> str:
        target = os.path.normpath(folder / match[2])
        if target.startswith("docs/"):
            return match[0]
        return f"[{match[1]}]({REPOSITORY}/blob/main/{target}{match[3] or ''})" if REPOSITORY else match[1]

    return LINK.sub(link, markdown)

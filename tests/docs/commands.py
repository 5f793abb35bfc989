# SPDX-License-Identifier: Apache-2.0
"""The commands that the pages at the root and below docs/ show: those of their fenced `sh` and `console` blocks.

In a `sh` block every line is a command. In a `console` block a command stands behind `$ `, and what it prints follows,
with `…` for what is left out: a part of a line, or lines where it stands alone.
"""

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGES = (*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md")))

_BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_INLINE = re.compile(r"(?<!`)`([^`\n]+)`(?!`)")


@dataclass(frozen=True)
class Command:
    """One command line, where it stands, and what it is said to print."""

    page: str
    line: int
    text: str
    output: str = ""

    def __str__(self) -> str:
        return f"{self.page}:{self.line}"

    @property
    def parts(self) -> list[list[str]]:
        """The words of each program in it: `a b && c | d` has three."""
        lexer = shlex.shlex(self.text, posix=True, punctuation_chars="&|")
        lexer.whitespace_split, lexer.commenters = True, "#"
        parts: list[list[str]] = [[]]
        for word in lexer:
            if word in ("&&", "|"):
                parts.append([])
            else:
                parts[-1].append(word)
        return parts


def blocks(text: str) -> Iterator[tuple[str, int, str]]:
    """(language, line that it begins on, content) of every fenced block."""
    for match in _BLOCK.finditer(text):
        yield match[1], text.count("\n", 0, match.start()) + 2, match[2]


def commands(text: str, page: str) -> Iterator[Command]:
    """Those of a page, in its order."""
    for language, first, content in blocks(text):
        if language == "sh":
            yield from _script(page, first, content)
        elif language == "console":
            yield from _session(page, first, content)


def inline(text: str) -> Iterator[str]:
    """What stands between backquotes in the running text."""
    yield from _INLINE.findall(_BLOCK.sub("", text))


def says(documented: str, printed: str) -> bool:
    """Whether a command has printed what its page says."""
    lines = (
        r"(?:.*\n)*?" if line.strip() == "…" else ".*".join(map(re.escape, line.split("…"))) + "\n"
        for line in documented.splitlines()
    )
    return re.fullmatch("".join(lines), printed) is not None


def _script(page: str, first: int, content: str) -> Iterator[Command]:
    lines = content.splitlines()
    begun: list[str] = []
    for number, line in enumerate(lines, first):
        begun.append(line)
        if not line.endswith("\\"):
            text = "\n".join(begun)
            if text.strip() and not text.lstrip().startswith("#"):
                yield Command(page, number - len(begun) + 1, text)
            begun = []


def _session(page: str, first: int, content: str) -> Iterator[Command]:
    pieces = re.split(r"^\$ (.*)\n", content, flags=re.MULTILINE)
    line = first + pieces[0].count("\n")
    for text, output in zip(pieces[1::2], pieces[2::2], strict=True):
        yield Command(page, line, text, output)
        line += 1 + output.count("\n")


COMMANDS = [one for path in PAGES for one in commands(path.read_text(encoding="utf-8"), path.name)]

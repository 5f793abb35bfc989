# SPDX-License-Identifier: Apache-2.0
"""The commands that the pages at the root and below docs/ show: those of their fenced `sh` and `console` blocks.

In a `sh` block every line is a command. In a `console` block a command stands behind `$ `, and what it prints follows,
with `…` for what is left out: a part of a line, or lines where it stands alone.

test_commands runs all of them, except those of a block behind the line `<!-- not run: REASON -->`. After
`<!-- not run (docker, git): REASON -->` only commands that begin with one of these words are not run. A reason that
names another test module gives the commands to that module (`given_to`).
"""

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGES = (*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md")))

_BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_NOT_RUN = re.compile(r"<!-- not run(?: \(([^)]+)\))?: (.+) -->\n\Z")
_INLINE = re.compile(r"(?<!`)`([^`\n]+)`(?!`)")


@dataclass(frozen=True)
class Command:
    """One command line, where it stands, the text that it prints, and why test_commands does not run it."""

    page: str
    line: int
    text: str
    output: str = ""
    not_run: str = ""

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

    @property
    def steps(self) -> "list[Command]":
        """The commands that are joined by `&&`. The output is that of the last one."""
        *first, last = (text.strip() for text in self.text.split("&&"))
        return [*(replace(self, text=text, output="") for text in first), replace(self, text=last)]


def blocks(text: str) -> Iterator[tuple[str, int, str]]:
    """(language, line that it begins on, content) of every fenced block."""
    for match in _BLOCK.finditer(text):
        yield match[1], text.count("\n", 0, match.start()) + 2, match[2]


def commands(text: str, page: str) -> Iterator[Command]:
    """Those of a page, in its order. Raises ValueError for a reason that concerns no command."""
    lines = text.splitlines(keepends=True)
    for language, first, content in blocks(text):
        found = list(_COMMANDS[language](page, first, content)) if language in _COMMANDS else []
        marked = _NOT_RUN.search("".join(lines[max(first - 3, 0) : first - 2]))
        programs = [] if marked is None else [word.strip() for word in (marked[1] or "").split(",")]
        if unused := [word for word in programs if not any(command.text.startswith(word) for command in found)]:
            raise ValueError(f"{page}:{first - 2}: no command begins with {', '.join(unused) or 'anything'}")
        for command in found:
            reason = marked[2] if marked is not None and command.text.startswith(tuple(programs)) else ""
            yield replace(command, not_run=reason)


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


_COMMANDS = {"sh": _script, "console": _session}
COMMANDS = [command for path in PAGES for command in commands(path.read_text(encoding="utf-8"), path.name)]


def given_to(module: str) -> list[Command]:
    """The steps of all commands whose reason names this test module, given by its `__name__`."""
    name = module.rpartition(".")[2]
    found = [step for command in COMMANDS if re.search(rf"\b{name}\b", command.not_run) for step in command.steps]
    assert found, f"no page says that {name} runs a command"
    return found

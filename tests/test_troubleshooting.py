# SPDX-License-Identifier: Apache-2.0
"""Every text that the pages in docs/how-to/troubleshooting explain is one that the code still says."""

import ast
import re
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path

import pytest

pytestmark = pytest.mark.docs

ROOT = Path(__file__).parents[1]
PAGES = {path.stem: path.read_text(encoding="utf-8") for path in (ROOT / "docs/how-to/troubleshooting").glob("*.md")}
FOREIGN = re.compile(r" \((?:containerd|Linux)'s\)$")
IMITATED = re.compile(r" \((?:kubelet|the API server)'s\)$")
"""What the sandbox says as they do."""
HOLE = "\0"


def quoted() -> Iterator[str]:
    """The texts in the headings of the pages; one that has backquotes is between two of them."""
    for heading in re.findall(r"^##+ (`.+)$", "\n".join(PAGES.values()), re.MULTILINE):
        if not FOREIGN.search(heading):
            match = re.fullmatch(r"`` (.+) ``|`([^`]+)`", IMITATED.sub("", heading))
            assert match, f"{heading!r} is not one quoted text"
            yield match[1] or match[2]


def template(node: ast.expr) -> str:
    """The text of a literal, with a hole for each value that is put into it."""
    if isinstance(node, ast.Constant):
        return node.value if isinstance(node.value, str) else HOLE
    if isinstance(node, ast.JoinedStr):
        return "".join(template(part) for part in node.values)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        return template(node.left) + template(node.right)
    return HOLE


@cache
def sources() -> Mapping[Path, str]:
    """Everything that we ship and that says something: the packages, and the chart's templates."""
    packages = (path for name in ("dra_driver", "controller", "kubeletplugin") for path in (ROOT / name).rglob("*.py"))
    chart = (ROOT / "charts/dra-driver-gpu/templates").glob("*.yaml")
    return {path: path.read_text(encoding="utf-8") for path in (*packages, *chart)}


@cache
def templates(path: Path) -> frozenset[str]:
    """Those of every literal in a module, docstrings aside; of a template of the chart, its lines."""
    source = sources()[path]
    if path.suffix == ".py":
        return frozenset(template(node) for node in literals(ast.parse(source)))
    return frozenset(re.sub(r"\$\w+", HOLE, line) for line in source.splitlines())


def candidates(text: str) -> Iterator[str]:
    """The literals among which `text` would be: those of files that have all of its words, and first of files that have
    its longest part in one line. Parsing every file takes seconds.
    """
    words = re.findall(r"[A-Za-z]{3,}", text)
    longest = max(text.split("…"), key=len)
    paths = [path for path, source in sources().items() if all(word in source for word in words)]
    for path in sorted(paths, key=lambda path: longest not in sources()[path]):
        yield from templates(path)


def literals(tree: ast.AST) -> Iterator[ast.expr]:
    """The texts in a tree, each as a whole."""
    waiting = [tree]
    while waiting:
        for child in ast.iter_child_nodes(waiting.pop()):
            if isinstance(child, ast.Expr) and isinstance(child.value, ast.Constant):
                continue  # a docstring
            if isinstance(child, ast.Constant | ast.JoinedStr | ast.BinOp):
                yield child
            if not isinstance(child, ast.Constant | ast.Name):
                waiting.append(child)


def pattern(text: str) -> re.Pattern[str]:
    """Matches a literal whose fixed words are those of `text`; where it has `…`, anything may be."""
    return re.compile(".*".join(re.escape(part) for part in text.split("…")), re.DOTALL)


def is_said(text: str) -> bool:
    """Whether there is a literal with the words of `text`."""
    return any(map(pattern(text).search, candidates(text)))


def test_texts_that_are_explained_are_said_somewhere() -> None:
    """One test for all texts: each process that looks for one reads every file."""
    assert [text for text in quoted() if not is_said(text)] == []


def test_a_text_that_nobody_says_is_noticed() -> None:
    assert not is_said("claim … was taken by the cat")


def test_no_text_is_explained_twice() -> None:
    texts = list(quoted())
    assert sorted(set(texts)) == sorted(texts)

# SPDX-License-Identifier: Apache-2.0
"""The pages about ComputeDomains explain every reason of a condition, and quotes texts that the code says."""

import ast
import re
from collections.abc import Iterator

import pytest

from tests.test_troubleshooting import is_said

from .commands import ROOT

GUIDE, CONDITIONS_PAGE, ERRORS = (
    (ROOT / f"docs/{name}.md").read_text(encoding="utf-8")
    for name in (
        "how-to/compute-domains",
        "reference/compute-domain-conditions",
        "how-to/troubleshooting/compute-domains",
    )
)
STATUS = ("status.py", "pods.py")
CONDITIONS = ("TemplateCreated", "DaemonsReady", "DomainUp")


def section(page: str, heading: str) -> str:
    return page.split(f"\n## {heading}\n")[1].split("\n#")[0]


def reasons(heading: str) -> set[str]:
    """The reasons in the table of a condition."""
    rows = re.findall(r"^\| (`[A-Z].*?) \|", section(CONDITIONS_PAGE, heading), re.MULTILINE)
    return {name for row in rows for name in re.findall(r"`(\w+)`", row)}


def given() -> set[str]:
    """The reasons that the code gives: constants of modules, and what is passed for a condition."""
    found: set[str] = set()
    for name in STATUS:
        tree = ast.parse((ROOT / "controller/cluster/domains" / name).read_text(encoding="utf-8"))
        for statement in tree.body:
            if isinstance(statement, ast.AnnAssign) and isinstance(statement.value, ast.Constant):
                found |= set(texts(statement.value))
            elif isinstance(statement, ast.Assign | ast.AnnAssign) and isinstance(statement.value, ast.Tuple):
                found |= {text for one in statement.value.elts for text in texts(one)}
        for node in ast.walk(tree):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
                place = {"condition": 1, "DomainCondition": 2, "DaemonProblem": 1}.get(node.func.id, len(node.args))
                found |= {text for one in node.args[place : place + 1] for text in texts(one)}
    return {one for one in found if re.fullmatch(r"([A-Z][a-z]+)+", one)}


def texts(node: ast.expr) -> Iterator[str]:
    """The text of a literal."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        yield node.value


def test_every_reason_is_explained_and_no_other() -> None:
    explained = set[str]().union(*map(reasons, CONDITIONS))
    assert explained == given()


@pytest.mark.parametrize("heading", ["Pods stay in ContainerCreating", "Errors of nvidia-imex"])
def test_a_quoted_message_is_one_that_the_code_says(heading: str) -> None:
    rows = re.findall(r"^\| `([^`]+)`.* \|", section(ERRORS, heading), re.MULTILINE)
    assert rows
    assert [one for one in rows if not is_said(one)] == []


def test_the_examples_are_all_named() -> None:
    named = set(re.findall(r"\(\.\./\.\./(examples/[^)]+)\)", GUIDE))
    with_domain = {
        str(path.relative_to(ROOT))
        for path in (ROOT / "examples").glob("*.yaml")
        if "kind: ComputeDomain\n" in path.read_text(encoding="utf-8")
    }
    assert named == with_domain

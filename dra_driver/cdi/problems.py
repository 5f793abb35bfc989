# SPDX-License-Identifier: Apache-2.0
"""What is wrong with a spec, and the error that carries all of it."""

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Problem:
    """One violated rule. `path` is the JSON path of the field, empty for the whole document."""

    path: str
    message: str

    def __str__(self) -> str:
        return f"{self.path}: {self.message}" if self.path else self.message


class SpecError(ValueError):
    """The spec is not one that a runtime would load. `problems` is never empty."""

    def __init__(self, problems: Iterable[Problem], source: str = "CDI spec") -> None:
        self.problems = tuple(problems)
        super().__init__(f"{source}: {'; '.join(str(problem) for problem in self.problems)}")

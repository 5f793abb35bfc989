# SPDX-License-Identifier: Apache-2.0
"""One request, understood: the resource it means, who asks, and its options."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from .. import field_errors as errors
from .. import status
from ..field_errors import FieldError
from ..kinds import Served, ServedKind
from ..users import User

Query = Mapping[str, Sequence[str]]

_VALIDATIONS = ("", "Ignore", "Strict", "Warn")
_MANAGER_LENGTH = 128


@dataclass
class Call:
    """A request to a resource. `warnings` go back to the client in headers."""

    verb: str
    served: Served
    namespace: str
    name: str
    subresource: str
    user: User
    query: Query = field(default_factory=dict)
    body: bytes = b""
    content_type: str = ""
    user_agent: str = ""
    warnings: list[str] = field(default_factory=list)

    @property
    def kind(self) -> ServedKind:
        """The kind that the URL names."""
        return self.served.kind

    @property
    def key(self) -> str:
        """The key of the object that the URL names."""
        return self.key_of(self.name)

    def key_of(self, name: str) -> str:
        """The key of an object of this name in the request's namespace."""
        return f"{self.namespace}/{name}" if self.kind.namespaced else name

    def option(self, name: str) -> str:
        """A query parameter; empty when it is absent."""
        values = self.query.get(name)
        return values[0] if values else ""

    def flag(self, name: str) -> bool:
        """A boolean query parameter: present and neither `false` nor `0`."""
        values = self.query.get(name)
        return values is not None and len(values) > 0 and values[0].lower() not in ("false", "0")

    def number(self, name: str) -> int | None:
        """An integer query parameter; 400 when it is none."""
        text = self.option(name)
        if not text:
            return None
        try:
            return int(text)
        except ValueError:
            raise status.bad_request(f'strconv.ParseInt: parsing "{text}": invalid syntax') from None

    @cached_property
    def dry_run(self) -> bool:
        """Whether nothing must be stored."""
        return "All" in self.query.get("dryRun", ())

    @cached_property
    def field_validation(self) -> str:
        """What to do about unknown and duplicate fields: Ignore, Warn or Strict."""
        return self.option("fieldValidation") or "Warn"

    @cached_property
    def manager(self) -> str:
        """The field manager: the parameter, or the first part of the user agent."""
        given = self.option("fieldManager")
        return given or self.user_agent.partition("/")[0][:_MANAGER_LENGTH]

    def missing(self) -> status.RequestError:
        """404 for the object that the URL names."""
        return status.not_found(self.kind.plural, self.kind.group, self.name)

    def invalid(self, name: str, problems: Sequence[FieldError]) -> status.RequestError:
        """422 for an object of this kind."""
        return status.invalid(self.kind.name, self.kind.group, name, problems)

    def conflict(self, name: str, detail: str) -> status.RequestError:
        """409 for an object of this kind."""
        return status.conflict(self.kind.plural, self.kind.group, name, detail)

    def check_write_options(self, options: str) -> None:
        """Raises 422 when the query parameters of a create, update or patch are wrong."""
        problems = list(self._option_problems())
        if problems:
            raise status.invalid_options(options, problems)

    def _option_problems(self) -> Iterator[FieldError]:
        dry_run = [value for value in self.query.get("dryRun", ()) if value]
        if dry_run and dry_run != ["All"]:
            yield errors.not_supported("dryRun", dry_run, ["All"])
        manager = self.option("fieldManager")
        if len(manager) > _MANAGER_LENGTH:
            yield errors.too_long("fieldManager", _MANAGER_LENGTH)
        if any(not letter.isprintable() for letter in manager):
            yield errors.invalid("fieldManager", manager, "should only contain printable characters")
        if self.option("fieldValidation") not in _VALIDATIONS:
            yield errors.not_supported("fieldValidation", self.option("fieldValidation"), _VALIDATIONS)

# SPDX-License-Identifier: Apache-2.0
"""Conversations with an API server: requests in a file, and the answers that a real server gave.

A conversation (`conversations/*.yaml`) is a list of steps. `record.py` holds it with a
kube-apiserver and stores the answers beside it (`*.recorded.json`); the tests hold it with the
embedded server and compare. What differs from run to run (UIDs, times, resource versions, random
names) is replaced by placeholders in both.

A step: `do` (method and path; `NS` stands for the conversation's own namespace), and optionally
`body`, `type`, `accept`, `until` (repeat until the answer has this code or these values).
`${2.metadata.uid}` in a path or body is a value from the raw answer to step 2. With `compare: code`,
for a conversation or a step, only the codes and warnings are recorded: the embedded server says what
is wrong in its own words, and leaves out some defaults and columns.
"""

import json
import re
import secrets
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import urllib3
import yaml

FOLDER = Path(__file__).with_name("conversations")

_UID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")
_TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z")
_REFERENCE = re.compile(r"\$\{(\d+)\.([^}]+)\}")
_AGE = re.compile(r"\d+s")
_PLACEHOLDER = re.compile(r"<(uid|revision) \d+>")
_REVISION = re.compile(r"(?<=\()\d+(?=\))")
_SHOWN = re.compile(r'Invalid value: (null|\[\]|"map\[.*?\]"|"?\{.*?\}"?|\[\{.*?\}\]): (?=[a-z`])')
"""Values that are no scalars: Go shows them with the names of its structs."""
_PATIENCE = 10.0


@dataclass(frozen=True)
class Conversation:
    """What is said, and where the answers of a real server are."""

    name: str
    title: str
    steps: list[dict[str, Any]]
    cleanup: list[str]
    generated: list[str]
    """Prefixes of generated names."""
    only_codes: bool
    """Whether the answers may differ in everything but their codes."""

    @property
    def recording(self) -> Path:
        """The file with the answers, a line each."""
        return FOLDER / f"{self.name}.recorded.json"

    def recorded(self) -> list[dict[str, Any]]:
        """The answers that were recorded."""
        return [json.loads(line) for line in self.recording.read_text(encoding="utf-8").splitlines()]

    def record(self, answers: list[dict[str, Any]]) -> None:
        """Writes the answers."""
        lines = [json.dumps(answer, sort_keys=True) + "\n" for answer in answers]
        self.recording.write_text("".join(lines), encoding="utf-8")


def conversations() -> list[Conversation]:
    """All conversations, in the order of their names."""
    return list(_read())


def _read() -> Iterator[Conversation]:
    for path in sorted(FOLDER.glob("*.yaml")):
        content = yaml.load(path.read_bytes(), yaml.CSafeLoader)
        yield Conversation(
            path.stem,
            content["title"],
            content["steps"],
            content.get("cleanup", []),
            content.get("generated", []),
            content.get("compare") == "code",
        )


class Partner:
    """A server to talk to."""

    def __init__(self, url: str, token: str, authority: str | None, *, patience: float = 60.0) -> None:
        """`authority` is the file of the CA to trust, None trusts anybody; `patience` the seconds to wait for data."""
        self.url = url
        self.token = token
        self.authority = authority
        self._pool = urllib3.PoolManager(
            ca_certs=authority,
            cert_reqs="CERT_REQUIRED" if authority else "CERT_NONE",
            retries=False,
            timeout=urllib3.Timeout(connect=60.0, read=patience),
        )

    def ask(self, method: str, path: str, body: Any = None, **headers: str) -> tuple[int, dict[str, Any], Any]:
        """Status, headers (lower case; warnings as a list) and body, JSON where it is."""
        sent = {"Accept": "application/json", "User-Agent": "talk/1"}
        if self.token:
            sent["Authorization"] = f"Bearer {self.token}"
        sent |= {name.replace("_", "-"): value for name, value in headers.items() if value}
        data = body.encode() if isinstance(body, str) else None if body is None else json.dumps(body).encode()
        if data is not None:
            sent.setdefault("Content-Type", "application/json")
        answer = self._pool.request(method, self.url + path, body=data, headers=sent)
        received: dict[str, Any] = {name.lower(): value for name, value in answer.headers.items()}
        received["warning"] = answer.headers.getlist("Warning")
        return answer.status, received, _parsed(answer.data.decode())


def _parsed(text: str) -> Any:
    """JSON, the JSON lines of a watch, or the text itself."""
    try:
        return json.loads(text)
    except ValueError:
        pass
    try:
        return [json.loads(line) for line in text.splitlines()]
    except ValueError:
        return text


def hold(conversation: Conversation, partner: Partner) -> list[dict[str, Any]]:
    """Holds the conversation in a namespace of its own; the normalised answers."""
    namespace = f"talk-{secrets.token_hex(4)}"
    partner.ask("POST", "/api/v1/namespaces", {"metadata": {"name": namespace}})
    raw: list[Any] = []
    normalise = _Normaliser(conversation, namespace)
    answers = []
    try:
        for step in conversation.steps:
            code, headers, body = _take(step, namespace, raw, partner)
            raw.append(body)
            answer = {"do": step["do"], "code": code}
            if not conversation.only_codes and step.get("compare") != "code":
                answer["body"] = normalise(body)
            if headers["warning"]:
                answer["warnings"] = sorted(headers["warning"])
            answers.append(answer)
    finally:
        for path in conversation.cleanup:
            partner.ask("DELETE", path.replace("NS", namespace))
        partner.ask("DELETE", f"/api/v1/namespaces/{namespace}")
    return numbered(answers)


def numbered(answers: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The answers with their placeholders numbered in the order in which sorted JSON has them."""
    seen: dict[str, str] = {}

    def number(match: re.Match[str]) -> str:
        count = sum(1 for name in seen if name.startswith(f"<{match[1]} "))
        return seen.setdefault(match[0], f"<{match[1]} {count + 1}>")

    found: list[dict[str, Any]] = json.loads(_PLACEHOLDER.sub(number, json.dumps(answers, sort_keys=True)))
    return found


def _take(step: dict[str, Any], namespace: str, raw: list[Any], partner: Partner) -> tuple[int, dict[str, Any], Any]:
    method, _, path = _filled(step["do"], namespace, raw).partition(" ")
    body = _filled(step.get("body"), namespace, raw)
    wanted = step.get("until")
    end = time.monotonic() + _PATIENCE
    while True:
        answer = partner.ask(method, path, body, Content_Type=step.get("type", ""), Accept=step.get("accept", ""))
        if wanted is None or _has(answer, wanted):
            return answer
        if time.monotonic() > end:
            raise AssertionError(f"{step['do']} never answered {wanted}, but {answer}")
        time.sleep(0.02)


def _has(answer: tuple[int, Any, Any], wanted: Any) -> bool:
    if isinstance(wanted, int):
        return answer[0] == wanted
    return all(_find(answer[2], path) == value for path, value in wanted.items())


def _is_nothing(name: str, value: Any) -> bool:
    """Nulls and the empty token of a list's last page, which Go writes. Also `.` in managed fields: the embedded server
    records leaves and items of lists, but not the structs around them.
    """
    return value is None or name == "." or (name == "continue" and value == "")


def _filled(value: Any, namespace: str, raw: list[Any]) -> Any:
    if isinstance(value, str):
        text = re.sub(r"\bNS\b", namespace, value)
        return _REFERENCE.sub(lambda match: str(_find(raw[int(match[1])], match[2])), text)
    if isinstance(value, dict):
        return {key: _filled(item, namespace, raw) for key, item in value.items()}
    if isinstance(value, list):
        return [_filled(item, namespace, raw) for item in value]
    return value


def _find(value: Any, path: str) -> Any:
    for part in path.split("."):
        if isinstance(value, list):
            value = value[int(part)] if int(part) < len(value) else None
        elif isinstance(value, dict):
            value = value.get(part)
        else:
            return None
    return value


class _Normaliser:
    """Replaces what differs between runs, consistently within one."""

    def __init__(self, conversation: Conversation, namespace: str) -> None:
        self._namespace = namespace
        self._uids: dict[str, str] = {}
        self._revisions: dict[str, str] = {}
        self._generated = [re.compile(re.escape(prefix) + "[a-z0-9]{5}") for prefix in conversation.generated]
        self._prefixes = conversation.generated

    def __call__(self, value: Any) -> Any:
        return self._value(value, "")

    def _value(self, value: Any, key: str) -> Any:
        if isinstance(value, dict):
            details = value.get("details")
            if isinstance(details, dict) and len({str(cause) for cause in details.get("causes", ())}) > 1:
                value = {**value, "message": "<the causes, in any order>"}
            return {
                name: self._value(item, name)
                for name, item in value.items()
                if not (name == "description" and "priority" in value)
                and name != "storageVersionHash"
                and not _is_nothing(name, item)
            }
        if isinstance(value, list):
            items = [self._value(item, "") for item in value]
            if key in ("managedFields", "conditions"):
                return sorted(items, key=lambda item: json.dumps(item, sort_keys=True))
            if key == "causes":
                unique = {json.dumps(item, sort_keys=True): item for item in items}
                return [unique[text] for text in sorted(unique)]
            return [_AGE.sub("<age>", item) if key == "cells" and isinstance(item, str) else item for item in items]
        return self._text(value, key) if isinstance(value, str) else value

    def _text(self, text: str, key: str) -> str:
        if key == "resourceVersion" and text.isdecimal():
            return self._revisions.setdefault(text, f"<revision {len(self._revisions) + 1}>")
        if key == "continue":
            return "<continue>"
        text = text.replace(self._namespace, "NS").partition("\n@@")[0]  # Go appends a diff of its structs
        text = _UID.sub(lambda match: self._uids.setdefault(match[0], f"<uid {len(self._uids) + 1}>"), text)
        text = _SHOWN.sub("Invalid value: <value>: ", _TIME.sub("<time>", text))
        text = _REVISION.sub(lambda match: self._revisions.get(match[0], match[0]), text)
        for pattern, prefix in zip(self._generated, self._prefixes, strict=True):
            text = pattern.sub(f"{prefix}<random>", text)
        return text

# SPDX-License-Identifier: Apache-2.0
"""The YAML form of a policy, strictly read.

gpus:
- match:                        # all that is given must match; models and nodes are globs; without `match`: every GPU
    models: ["NVIDIA A100*"]
    indexes: [0, 1]             # as nvidia-smi counts; they shift when a GPU is given to a virtual machine
    uuids: [GPU-8f6f2a54-…]
    pciBusIDs: ["0000:3b:00.0"]
    nodes: ["gpu-a*"]
  publish: true
  mig: dynamic                  # auto, static, dynamic
  passthrough: true
  health: true
  shares: disabled              # disabled, unlimited, memory, or the number of claims that may share a device
  bindingConditions: false      # true: pods that get it are bound only when the kubelet plugin has agreed
health:
  applicationXIDs: [137]
  effect: NoSchedule            # NoSchedule, NoExecute, None
  withdrawAfterSeconds: 300
  clearAfterSeconds: 3600       # without it: not before a reset
  quietAfterSeconds: 600
listTypeAttributes: false
"""

import enum
import re
from pathlib import Path
from typing import Final, TypeVar

from ...errors import DriverError
from ...parsing import ParseError, decode_text, load
from ...resource import TaintEffect
from ...resource.codec import DecodeError, Fields
from .rules import GpuRule, HealthPolicy, MigPolicy, NodePolicy, Shares

E = TypeVar("E", bound=enum.StrEnum)

_ADDRESS = re.compile(r"(?P<domain>[0-9a-fA-F]{4,8}):(?P<rest>[0-9a-fA-F]{2}:[0-9a-fA-F]{2}\.[0-7])")

_MOST_SHARES: Final = 1_000_000
_MOST_SECONDS: Final = 366 * 24 * 3600  # a year


class PolicyError(DriverError, ValueError):
    """The policy cannot be used; the text says which file and field, and what would be right."""


def load_policy(path: Path) -> NodePolicy:
    """The policy in a file, for all nodes. An empty file wants nothing special. Raises PolicyError."""
    source = f"policy file {path}"
    try:
        return parse_policy(decode_text(path.read_bytes()), source)
    except OSError as error:
        raise PolicyError(f"{source} cannot be read: {error.strerror}") from None
    except ParseError as error:
        raise PolicyError(f"{source}:{error}") from None


def parse_policy(text: str, source: str = "policy") -> NodePolicy:
    """The policy in a text; `source` names it in errors. Raises PolicyError."""
    try:
        value = load(text)
        return _policy(Fields({} if value is None else value))
    except ParseError as error:
        raise PolicyError(f"{source}:{error}") from None
    except DecodeError as error:
        raise PolicyError(f"{source}: {error}") from None


def _policy(fields: Fields) -> NodePolicy:
    health = fields.object("health")
    policy = NodePolicy(
        rules=fields.objects("gpus", _rule),
        health=HealthPolicy() if health is None else _health(health),
        list_type_attributes=fields.flag("listTypeAttributes"),
    )
    fields.finish()
    return policy


def _rule(fields: Fields) -> GpuRule:
    match = fields.object("match") or Fields({}, "match", fields)
    rule = GpuRule(
        models=match.texts("models"),
        indexes=_integers(match, "indexes", 0),
        uuids=match.texts("uuids"),
        pci_addresses=tuple(_address(match, text, at) for at, text in enumerate(match.texts("pciBusIDs"))),
        nodes=match.texts("nodes"),
        publish=_flag(fields, "publish"),
        mig=_word(fields, "mig", MigPolicy),
        passthrough=_flag(fields, "passthrough"),
        health=_flag(fields, "health"),
        shares=_shares(fields),
        binding_conditions=_flag(fields, "bindingConditions"),
    )
    match.finish()
    fields.finish()
    return rule


def _health(fields: Fields) -> HealthPolicy:
    usual = HealthPolicy()
    policy = HealthPolicy(
        application_xids=frozenset(_integers(fields, "applicationXIDs", 1)),
        effect=_word(fields, "effect", TaintEffect) or usual.effect,
        withdraw_after=_seconds(fields, "withdrawAfterSeconds", usual.withdraw_after) or 0.0,
        clear_after=_seconds(fields, "clearAfterSeconds", usual.clear_after),
        quiet_after=_seconds(fields, "quietAfterSeconds", usual.quiet_after) or 0.0,
    )
    fields.finish()
    return policy


def _flag(fields: Fields, field: str) -> bool | None:
    return fields.flag(field) if field in fields else None


def _word(fields: Fields, field: str, words: type[E]) -> E | None:
    word = fields.optional_text(field)
    if word is None:
        return None
    try:
        return words(word)
    except ValueError:
        raise fields.error(field, f"must be {' or '.join(words)}, not {word!r}") from None


def _shares(fields: Fields) -> Shares | int | None:
    value = fields.take("shares")
    if value is None:
        return None
    if type(value) is int and 1 <= value <= _MOST_SHARES:
        return value
    if type(value) is str and value in tuple(Shares):
        return Shares(value)
    raise fields.error(
        "shares", f"must be {', '.join(Shares)} or a number of claims from 1 to {_MOST_SHARES}, not {value!r}"
    )


def _integers(fields: Fields, field: str, least: int) -> tuple[int, ...]:
    values = fields.array(field)
    for index, value in enumerate(values):
        if type(value) is not int or not least <= value < 1 << 63:
            raise fields.error(f"{field}[{index}]", f"must be a whole number from {least} on, not {value!r}")
    return tuple(values)


def _seconds(fields: Fields, field: str, usual: float | None) -> float | None:
    value = fields.take(field)
    if value is None:
        return usual
    if type(value) not in (int, float) or not 0 <= value <= _MOST_SECONDS:
        raise fields.error(field, f"must be a number of seconds from 0 to {_MOST_SECONDS} (a year), not {value!r}")
    return float(value)


def _address(fields: Fields, text: str, index: int) -> str:
    """The address as sysfs writes it: lower case, a domain of four digits unless it needs more."""
    match = _ADDRESS.fullmatch(text)
    if match is None:
        raise fields.error(f"pciBusIDs[{index}]", f"{text!r} is not a PCI address such as 0000:3b:00.0")
    return f"{int(match['domain'], 16):04x}:{match['rest'].lower()}"

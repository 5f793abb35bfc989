# SPDX-License-Identifier: Apache-2.0
"""Usual mistakes in device selectors, and what to write instead.

The compiler and the evaluation of an expression report what is wrong by the rules of CEL ("no such overload"). People
who write their first selector often want something that CEL writes in another way: this module recognises it in the
text of the expression.
"""

import re
from collections.abc import Iterable, Iterator
from typing import Final

from .. import DRIVER_NAME
from ..resource import Device, Version

_TEXTS: Final = re.compile(r"""\"(?:\\.|[^"\\])*"|'(?:\\.|[^'\\])*'""")
_ASSIGNED: Final = re.compile(r"(?<![=!<>])=(?!=)")
_WORDS: Final = {"and": "&&", "or": "||", "not": "!"}
_SINGLE: Final = re.compile(r"(?<!&)&(?!&)|(?<!\|)\|(?!\|)")
_COMPARED_QUANTITY: Final = re.compile(
    r"device\.capacity\[[^]]*\]\.\w+\s*(?:>=|<=|>|<|(?:==|!=)\s*[\"'0-9])|quantity\([^)]*\)\s*(?:>=|<=|>|<)"
)
_COMPARED_ATTRIBUTE: Final = re.compile(
    r"device\.attributes\[[^]]*\]\.(?P<name>\w+)\s*"
    r"(?:(?:==|!=)\s*[\"']|(?:<=|>=|<|>)|\.(?:startsWith|endsWith|contains|matches)\()"
)
_COMPARED_SEMVER: Final = re.compile(r"semver\([^)]*\)\s*(?:>=|<=|>|<)")
_WHOLE_NAME: Final = re.compile(r"device\.(attributes|capacity)\[([\"'])([^\"'/]+)/(\w+)\2\]")
_NO_DOMAIN: Final = re.compile(r"device\.(attributes|capacity)(?:\.(?P<field>\w+)|\[([\"'])(?P<key>\w+)\3\])")


def version_names(devices: Iterable[Device]) -> frozenset[str]:
    """The attributes of devices that are versions, by the part of their names behind the domain."""
    return frozenset(
        name.rpartition("/")[2]
        for device in devices
        for name, value in device.attributes.items()
        if isinstance(value, Version)
    )


def usual_mistakes(expression: str, versions: frozenset[str]) -> list[str]:
    """What to write instead, one sentence for each mistake. `versions` are the attributes that are versions."""
    return list(dict.fromkeys(_mistakes(expression, versions)))


def _mistakes(expression: str, versions: frozenset[str]) -> Iterator[str]:
    bare = _TEXTS.sub(lambda text: '"' + "_" * (len(text.group()) - 2) + '"', expression)
    if _ASSIGNED.search(bare):
        yield "write == to compare; = is no operator of CEL"
    for word, operator in _WORDS.items():
        if re.search(rf"\b{word}\b", bare):
            yield f"write {operator}; {word} is no operator of CEL"
    if single := _SINGLE.search(bare):
        yield f"write {2 * single.group()}; {single.group()} is no operator of CEL"
    if _COMPARED_QUANTITY.search(bare):
        yield "quantities are compared by methods: .compareTo(quantity('40Gi')) >= 0"
    compared = [one["name"] for one in _COMPARED_ATTRIBUTE.finditer(bare) if one["name"] in versions]
    if compared or _COMPARED_SEMVER.search(bare):
        who = f"{compared[0]} is a version, and versions" if compared else "versions"
        yield f"{who} are compared by methods: .isGreaterThan(semver('580.0.0')) or .compareTo(semver('580.0.0')) >= 0"
    if whole := _WHOLE_NAME.search(expression):
        field, _, domain, name = whole.groups()
        yield f"the domain and the name are two steps: device.{field}['{domain}'].{name}"
    if lacking := _NO_DOMAIN.search(expression):
        name = lacking["field"] or lacking["key"]
        yield f"name the domain first: device.{lacking[1]}['{DRIVER_NAME}'].{name}"

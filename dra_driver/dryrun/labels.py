# SPDX-License-Identifier: Apache-2.0
"""Label selectors on the command line, as for `kubectl get -l`: `a=b,c!=d,e in (x,y),f,!g`.

The grammar is that of k8s.io/apimachinery `labels.Parse`, without `<` and `>`, which node labels do not need.
"""

import re
from typing import Final

from ..kube.resource import NodeSelectorRequirement
from ..kube.resource.names import is_label_key, is_label_value
from ..process.command import InputError
from ..scheduler.pods.objects import LabelSelector

_PART: Final = re.compile(r"(?:[^,()]|\([^()]*\))+")
_SET: Final = re.compile(r"(?P<key>\S+)\s+(?P<operator>in|notin)\s+\((?P<values>[^()]*)\)")
_EQUAL: Final = re.compile(r"(?P<key>[^\s=!]+)\s*(?P<operator>==?|!=)\s*(?P<value>[^\s=!]*)")
_EXISTS: Final = re.compile(r"(?P<operator>!?)\s*(?P<key>[^\s=!]+)")
_FORMS: Final = "KEY=VALUE, KEY!=VALUE, KEY in (A,B), KEY notin (A,B), KEY or !KEY"


def parse_selector(text: str) -> LabelSelector:
    """The selector that a text stands for. Raises InputError."""
    parts = [part.strip() for part in _PART.findall(text)]
    if not parts or ",".join(_PART.findall(text)) != text:
        raise InputError(f"-l {text!r}: write {_FORMS}, separated by commas")
    return LabelSelector(tuple(_requirement(part, text) for part in parts))


def _requirement(part: str, text: str) -> NodeSelectorRequirement:
    if match := _SET.fullmatch(part):
        values = tuple(value.strip() for value in match["values"].split(","))
        found = NodeSelectorRequirement(match["key"], "In" if match["operator"] == "in" else "NotIn", values)
    elif match := _EQUAL.fullmatch(part):
        operator = "NotIn" if match["operator"] == "!=" else "In"
        found = NodeSelectorRequirement(match["key"], operator, (match["value"],))
    elif match := _EXISTS.fullmatch(part):
        found = NodeSelectorRequirement(match["key"], "DoesNotExist" if match["operator"] else "Exists")
    else:
        raise InputError(f"-l {text!r}: {part!r} is none of {_FORMS}")
    if not is_label_key(found.key):
        raise InputError(f"-l {text!r}: {found.key!r} is not a label key")
    wrong = next((value for value in found.values if not is_label_value(value)), None)
    if wrong is not None:
        raise InputError(f"-l {text!r}: {wrong!r} is not a label value")
    return found

# SPDX-License-Identifier: Apache-2.0
"""cel.bind(name, value, expression): a name for a value (cel-go's `ext/bindings.go`, version 0)."""

from ..ast import Call, Ident, Node
from ..declarations import Library, Macro
from ..macros import binding, variable_name


def _bind(call: Call) -> Node | None:
    if not isinstance(call.target, Ident) or call.target.name != "cel" or call.target.absolute:
        return None
    name, value, result = call.arguments
    return binding(call, variable_name(name, "cel.bind() takes a variable name first"), value, result)


BINDINGS = Library(macros=(Macro("bind", 3, _bind),))

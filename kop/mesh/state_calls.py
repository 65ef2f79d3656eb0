"""The code of a function, read and not run: if it uses state.

Owns: which calls use state, what of a file a function is made of.
Must not know: how code is imported, what else it does.
"""

from __future__ import annotations

import ast
from typing import Final

from kop.mesh.graph import reachable

_STATE: Final = frozenset({"incr_counter", "get_counter", "del_counter", "put_state", "get_state"})


def state_call(source: str, class_name: str) -> tuple[str, int] | None:
    """Return the name and the line of the first use of state in a function's code, such as `context.get_state`; any
    attribute of such a name counts. None if none is seen, or the code cannot be parsed.

    `class_name` is `module.Class`, `module.function` or `module`, where the function `process` of the file is meant.
    Only the function, and what it uses of the file, is searched; all of the file's functions and classes if it is not
    there.
    """
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError):
        return None
    tops = {
        node.name: node for node in tree.body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
    }
    name = class_name.partition(".")[2].partition(".")[0] or "process"
    wanted = [name] if name in tops else list(tops)
    uses = {
        top: [node.id for node in ast.walk(tree) if isinstance(node, ast.Name) and node.id in tops]
        for top, tree in tops.items()
    }
    calls = [
        (node.lineno, node.attr)
        for top in reachable(wanted, uses)
        for node in ast.walk(tops[top])
        if isinstance(node, ast.Attribute) and node.attr in _STATE
    ]
    return (min(calls)[1], min(calls)[0]) if calls else None

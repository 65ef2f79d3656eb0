"""The effects of a request to the leader: the answer, and the changes to be written for it.

Owns: these data, the statuses of answers, who lost to whom, which definition is none.
Must not know: what kinds of requests do, topics.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Final

from kop.functions.definitions import Definition, LeaderAnswer, MeshDefinition, Request
from kop.functions.spec import FunctionSpec, SpecError

MAX_BYTES: Final = 512 * 1024
"""The most bytes of a definition, of a function or a mesh: it has to fit into a record."""
OK: Final = 200
WRONG: Final = 400
NOT_THERE: Final = 404
LOST: Final = 409
NO_PACKAGE: Final = 412
"""The package is not whole in its topic: whoever sent the request has to send both again."""

DEFECT: Final = 500


@dataclass(frozen=True)
class Effects:
    """The changes to be written, in one transaction, for a request."""

    answer: LeaderAnswer
    definitions: Mapping[str, Definition | None] = field(default_factory=dict)
    """The definition that a function has from now on, by its full name; None if it is not there any more."""
    meshes: Mapping[str, MeshDefinition | None] = field(default_factory=dict)
    """The same of meshes."""
    begins: Mapping[str, FunctionSpec | None] = field(default_factory=dict)
    """Functions with topics that are read from where their definitions say, and not from the first record: those that
    this one did not read before; None if it read none."""
    cleaned: Collection[str] = ()
    """Consumer groups that end with their function, once that is committed."""
    packages: Collection[str] = ()
    """Digests that no definition names any more."""
    drained: Mapping[str, bool] = field(default_factory=dict)
    """Workers that are given no instances from now on, or some again."""
    schedules: bool = True
    """True if assignments may change."""


def wrong(made: Definition, is_whole: Callable[[str], bool]) -> tuple[int, str] | None:
    """Return the status and the reason with which the definition of a function is refused: its configuration is wrong
    or another function's, it is too large, or its package is not there, which `is_whole` tells of a digest. None if it
    is right.
    """
    try:
        fqfn = made.spec.fqfn
    except SpecError as error:
        return WRONG, str(error)
    if fqfn != made.fqfn:
        return WRONG, f"the configuration is that of {fqfn}, not of {made.fqfn}"
    if len(made.to_json()) > MAX_BYTES:
        return WRONG, f"the definition of {fqfn} takes more than {MAX_BYTES} bytes"
    if not made.package or not is_whole(made.package):
        return NO_PACKAGE, f"the package of {fqfn} is not there as a whole: send it again"
    return None


def lost(request: Request, there: Definition | MeshDefinition | None, what: str, name: str) -> tuple[int, str] | None:
    """Return the status and the reason with which a request loses: it expects another revision than that of the
    definition `there`, which is None if there is no definition. None if it does not lose.

    `what` is the kind of `name` for the reason: function or mesh.
    """
    expects = request.expects
    creates = request.kind == "create" and expects is None
    if there is None:
        if expects is None:
            return None if creates else (NOT_THERE, f"there is no {what} {name}")
        return NOT_THERE, f"{name} was deleted meanwhile: revision {expects} is not there any more"
    if creates:
        return LOST, f"{name} exists already: {_who(there)} (revision {there.revision}); update it, or delete it first"
    if expects != there.revision:
        expected = "none" if expects is None else f"revision {expects}"
        return (
            LOST,
            f"{name} was changed meanwhile: {_who(there)}, and it has revision {there.revision} now; expected was "
            f"{expected}: read it, then try again",
        )
    return None


def _who(definition: Definition | MeshDefinition) -> str:
    at = datetime.fromtimestamp(definition.at_ms / 1000, UTC).isoformat(" ", "seconds").replace("+00:00", " UTC")
    return f"{definition.by or 'somebody'} has sent {definition.kind} at {at}"

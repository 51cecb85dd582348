"""One object for equal values in the documents of one resource.

A resource may have very many documents, and most of what they say is the same in each: its name, types, the matrix, the
number of an operation and of the replies to it. Decoded one by one, each document would have its own copy. Documents do
not change, so they may refer to the same ones.
"""

from typing import Any

from msgspec.structs import force_setattr

from cheops.engine.documents import Document
from cheops.log.operation import Operation, Reply

_MOST_TEXTS = 10_000  # outputs that are remembered, and the length of one: sites often reply with the same few
_TEXT_CHARACTERS = 64


class CommonValues:
    """Of one resource, while it is loaded."""

    def __init__(self) -> None:
        self._values: dict[Any, Any] = {}
        self._texts: dict[str, str] = {}

    def share(self, document: Document) -> None:
        """Put the values that another document has into this one, which nobody else has yet."""
        if isinstance(document, Reply):
            self._share_in_reply(document)
        elif isinstance(document, Operation):
            self._share_in_operation(document)

    def _share_in_reply(self, reply: Reply) -> None:
        common = self._values.setdefault
        force_setattr(reply, "resource", common(reply.resource, reply.resource))
        force_setattr(reply, "key", common(reply.key, reply.key))
        force_setattr(reply, "n", common(reply.n, reply.n))
        if reply.op is not None:
            force_setattr(reply, "op", common(reply.op, reply.op))
        if len(reply.output) <= _TEXT_CHARACTERS and len(self._texts) < _MOST_TEXTS:
            force_setattr(reply, "output", self._texts.setdefault(reply.output, reply.output))
        for applied in reply.applied:  # of a replay: all that the site has applied
            force_setattr(applied, "id", common(applied.id, applied.id))
            force_setattr(applied, "key", common(applied.key, applied.key))

    def _share_in_operation(self, op: Operation) -> None:
        common = self._values.setdefault
        for name in ("resource", "rtype", "type", "seq", "matrix", "sites", "id"):
            value = getattr(op, name)
            force_setattr(op, name, common(value, value))
        if op.key == op.type:  # otherwise it is that of a kind, which is one object already
            force_setattr(op, "key", op.type)
        deps: Any = op.deps  # a dictionary that was decoded just now
        for origin, number in op.deps.items():
            deps[origin] = common(number, number)

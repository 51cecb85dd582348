"""What requests and responses of the API contain: one definition for server, OpenAPI document and clients.

    operations   operations, the log, the matrix, explanations
    resources    resources, replicants, requests of the gateway, scopes
    site         sites, access, checks, events

Models are frozen structs with keyword arguments, and field names are those of the JSON (`class_` is `class` there):

    plain(SiteView(name="site2", …))            # JSON data, for `-o json`
    from_json(content, SiteView).name

Events, audit entries and served requests are the types of `cheops.notify`, `cheops.security` and `cheops.gateway`
themselves.
"""

from typing import Any, TypeVar

import msgspec

M = TypeVar("M")


def plain(model: Any) -> Any:
    """A model as JSON data: dicts, lists, texts and numbers."""
    return msgspec.to_builtins(model)


def to_json(model: Any) -> bytes:
    return msgspec.json.encode(model)


def from_json(text: bytes, kind: type[M]) -> M:
    """A model from JSON; raises msgspec.DecodeError. Unknown fields are ignored: the agent may be newer."""
    try:
        return msgspec.json.decode(text, type=kind)
    except UnicodeDecodeError as error:
        raise msgspec.DecodeError(f"not UTF-8 text: {error}") from None
    except RecursionError:
        raise msgspec.DecodeError("nested too deep") from None

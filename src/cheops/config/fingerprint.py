"""Fingerprints of the resource types of a site: by these, sites notice that they are configured differently.

Types and services that sites share must merge, allow and read the same everywhere, or the first operation fails at some
of them. So each site announces, per type, a short hash of each part of its configuration that must be equal.
"""

import hashlib
import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import fields, is_dataclass
from enum import Enum
from itertools import accumulate
from pathlib import PurePath
from typing import Any, NamedTuple

from msgspec import Struct

from cheops.config.services import ReplicationConfig, type_name
from cheops.config.site import SiteConfig
from cheops.config.types import TypeConfig
from cheops.log.matrix import Matrix

# In this order their hashes stand in a fingerprint: it is part of the protocol.
PARTS = ("matrix", "policy", "allow", "read", "reset", "rules", "settings")
_DIGITS = 6
_MAX_NAME_BYTES = 40
_MAX_BYTES = 4_000  # of all of them: a site announces them with its addresses, to every other one


class Difference(NamedTuple):
    """A type that two sites configure differently, and in which parts."""

    type: str
    parts: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.type} ({', '.join(self.parts)})"


def fingerprints(config: SiteConfig) -> tuple[tuple[str, str], ...]:
    """The types of a site, each with its fingerprint; those of services too. If there are very many, the first ones."""
    found = {name: fingerprint(type_) for name, type_ in config.types.items()}
    for name, service in config.services.items():
        type_ = config.http_types[type_name(name)]
        found[type_.name] = fingerprint(type_, service.replication)
    announced = sorted((_announced_name(name), text) for name, text in found.items())
    sizes = accumulate(len(name.encode()) + len(text) for name, text in announced)
    return tuple(one for one, size in zip(announced, sizes, strict=True) if size <= _MAX_BYTES)


def _announced_name(name: str) -> str:
    """The name by which sites compare a type: a long one is cut, with a hash of all of it."""
    if len(name.encode()) <= _MAX_NAME_BYTES:
        return name
    start = name.encode()[: _MAX_NAME_BYTES - 2 * _DIGITS].decode(errors="ignore")
    return f"{start}~{_hash(name)}"


def fingerprint(type_: TypeConfig, service: ReplicationConfig | None = None) -> str:
    parts: dict[str, Any] = {
        "matrix": type_.matrix,
        "policy": type_.policy,
        "allow": service.allow if service else sorted(type_.command.allow),
        "read": (type_.read, type_.show, type_.checkpoint and type_.checkpoint.read),
        "reset": type_.reset,
        "rules": service and _rules(service),
        "settings": (
            type_.checkpoint and (type_.checkpoint.write, type_.checkpoint.after),
            type_.on_error,
            type_.decompose,
            type_.logic,
            type_.parallel,
            type_.backend,
            type_.command.shell,
        ),
    }
    return "".join(_hash(parts[part]) for part in PARTS)


def _rules(service: ReplicationConfig) -> tuple[Any, ...]:
    """What decides what a request is about. Credentials, addresses and times may be others at each site."""
    names = (service.id, service.items, service.refs, service.find, service.exists)
    return *names, service.rules, service.local, service.never


def difference_of(name: str, ours: Iterable[tuple[str, str]], theirs: Iterable[tuple[str, str]]) -> Difference | None:
    """How two sites configure one type differently; None if they do not, or it is not known."""
    announced = _announced_name(name)
    return next((one for one in differences(ours, theirs) if one.type == announced), None)


def differences(ours: Iterable[tuple[str, str]], theirs: Iterable[tuple[str, str]]) -> list[Difference]:
    """The types that both sites have, and configure differently."""
    others = dict(theirs)
    found = ((name, _differing_parts(own, others[name])) for name, own in ours if name in others)
    return [Difference(name, parts) for name, parts in found if parts]


def _differing_parts(one: str, other: str) -> tuple[str, ...]:
    places = ((part, slice(n * _DIGITS, (n + 1) * _DIGITS)) for n, part in enumerate(PARTS))
    return tuple(part for part, place in places if one[place] != other[place])


def _hash(value: Any) -> str:
    text = json.dumps(_canonical(value), sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:_DIGITS]


def _canonical(value: Any) -> Any:
    """The value as plain data that is equal for equal values, in every process."""
    match value:
        case None | bool() | int() | float() | str():
            return value
        case Matrix() | re.Pattern() | PurePath() | Enum():
            return _as_text(value)
        case Mapping():
            return _in_order([_canonical(key), _canonical(one)] for key, one in value.items())
        case set() | frozenset():
            return _in_order(_canonical(one) for one in value)
        case tuple() | list():
            return [_canonical(one) for one in value]
    if isinstance(value, Struct):
        names = value.__struct_fields__
    elif is_dataclass(value):
        names = tuple(one.name for one in fields(value))
    else:
        raise TypeError(f"no canonical form for {type(value).__name__}")
    return [type(value).__name__, [[name, _canonical(getattr(value, name))] for name in names]]


def _as_text(value: Matrix | re.Pattern[str] | PurePath | Enum) -> str:
    match value:
        case Matrix():
            return value.hash
        case re.Pattern():
            return value.pattern
        case Enum():
            return str(value.value)
    return str(value)


def _in_order(values: Iterable[Any]) -> list[Any]:
    return sorted(values, key=json.dumps)

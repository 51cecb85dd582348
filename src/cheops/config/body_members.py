"""Members of bodies, and where ids are: settings of a service that sets of rules may have, too."""

import re

from cheops.config.values import ValueType
from cheops.text import printable, shortened
from cheops.yaml_file import Value

_URL_PATH = re.compile(r"/[^\s?#]*")
_MEMBER = re.compile(r"\$((?:\.[A-Za-z_][\w-]*){1,8})")


def read_members(value: Value) -> frozenset[tuple[str, ...]]:
    paths = []
    for one in value.items():
        text = one.string()
        if not (found := _MEMBER.fullmatch(text)):
            raise one.fail(f"expected a member, such as $.metadata.uid, found '{printable(shortened(text))}'")
        paths.append(tuple(found[1].split(".")[1:]))
    return frozenset(paths)


def _write_members(paths: frozenset[tuple[str, ...]]) -> str:
    return f"[{', '.join(sorted('.'.join(('$', *path)) for path in paths))}]"


MEMBERS = ValueType("list of members", read_members, _write_members)


def read_items(value: Value) -> tuple[tuple[str, str], ...]:
    items = []
    for path, at in value.mapping().items():
        item = _read_url_path(at)
        if not _URL_PATH.fullmatch(path):
            raise at.fail(f"'{printable(shortened(path))}' is not a path, such as /images/import")
        if item.split("/").count("{id}") != 1 or not item.endswith("/{id}"):
            raise at.fail(f"'{printable(shortened(item))}' must end with /{{id}}, in place of the id")
        if item.split("/").count("*") > path.split("/").count("*"):
            raise at.fail("it has more * than the path; each * repeats one of the path")
        items.append((path.rstrip("/"), item))
    return tuple(items)


def read_refs(value: Value) -> tuple[tuple[str, str], ...]:
    return tuple((name, _read_url_path(at).rstrip("/")) for name, at in value.mapping().items())


def _read_url_path(value: Value) -> str:
    text = value.string()
    if not _URL_PATH.fullmatch(text):
        raise value.fail(f"expected a path, such as /images, found '{printable(shortened(text))}'")
    return text

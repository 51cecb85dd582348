"""YAML files of users, read so that every error gives the file, the line, the key and what to do.

`read_yaml` gives the root as a `Value`. The caller takes it apart with the methods for what it
expects (`record`, `mapping`, `items`, `number`, …); anything else raises YamlFileError. Scalars
keep the spelling of the file, so that a site called `no` or `1` is not read as false or a number.

    root = read_yaml(Path("mesh.yaml")).record(required=("sites",))
    for name, site in root["sites"].mapping().items(): …
"""

import re
from collections.abc import Iterator
from math import inf
from pathlib import Path

import yaml
from msgspec import Struct

from cheops.errors import ClientError
from cheops.scope.names import normal
from cheops.text import listed, nearest, printable, shortened

MAX_BYTES = 1024 * 1024
MAX_DEPTH = 32  # far more than any file of Cheops needs; the parser takes a stack frame per level
_Loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # the one in C is ten times as fast
_TAG = "tag:yaml.org,2002:"
_BOOLEANS = {"true": True, "yes": True, "on": True, "false": False, "no": False, "off": False}
_NUMBER = re.compile(r"[+-]?[0-9]+(\.[0-9]*)?([eE][+-]?[0-9]+)?")
_WHOLE = re.compile(r"[+-]?[0-9]{1,15}")


class YamlFileError(ClientError):
    """A file cannot be read, or its content is not as expected; the text starts with file and line."""


class Value(Struct, frozen=True):
    """A value in a YAML file, with its path (`sites.site1.rtt_ms`)."""

    source: str
    path: str
    node: yaml.Node

    def fail(self, problem: str) -> YamlFileError:
        where = f"{printable(self.path)}: " if self.path else ""
        return YamlFileError(f"{self.source}:{self.node.start_mark.line + 1}: {where}{problem}")

    @property
    def is_text(self) -> bool:
        """Whether this is a text, for a caller that accepts other types as well."""
        return isinstance(self.node, yaml.ScalarNode) and self.node.tag != f"{_TAG}null"

    @property
    def is_list(self) -> bool:
        return isinstance(self.node, yaml.SequenceNode)

    def mapping(self) -> "dict[str, Value]":
        """Any names and their values; a name given twice is refused, because one value would be lost."""
        if not isinstance(self.node, yaml.MappingNode):
            raise self.fail(f"expected names with values, found {self._kind()}")
        values: dict[str, Value] = {}
        for key, node in self.node.value:
            if key.tag == f"{_TAG}merge":
                raise Value(self.source, self.path, key).fail("merge keys (<<) are not supported")
            name = normal(Value(self.source, self.path, key).string())
            value = Value(self.source, f"{self.path}.{name}" if self.path else name, node)
            if name in values:
                raise Value(self.source, self.path, key).fail(f"'{name}' is given twice")
            values[name] = value
        return values

    def record(self, *, required: tuple[str, ...] = (), optional: tuple[str, ...] = ()) -> "dict[str, Value]":
        """Known keys and their values; an unknown key is refused, because it would have no effect."""
        values = self.mapping()
        allowed = (*required, *optional)
        for name, value in values.items():
            if name not in allowed:
                meant = nearest(name, allowed)
                hint = f"; did you mean '{meant}'?" if meant else "."
                raise value.fail(f"unknown key{hint} Known here: {listed(allowed)}")
        for name in required:
            if name not in values:
                raise self.fail(f"'{name}' is missing")
        return values

    def items(self) -> "Iterator[Value]":
        if not isinstance(self.node, yaml.SequenceNode):
            raise self.fail(f"expected a list, found {self._kind()}")
        for index, node in enumerate(self.node.value):
            yield Value(self.source, f"{self.path}[{index}]", node)

    def string(self) -> str:
        if not isinstance(self.node, yaml.ScalarNode) or self.node.tag == f"{_TAG}null":
            raise self.fail(f"expected a text, found {self._kind()}")
        return str(self.node.value)

    def number(self, *, minimum: float) -> float:
        if not self._is_plain() or not _NUMBER.fullmatch(self.node.value):
            raise self.fail(f"expected a number, such as 8 or 0.5, found {self._kind()}")
        number = float(self.node.value)
        if not minimum <= number < inf:
            raise self.fail(f"expected a number of at least {minimum:g}, found {self._kind()}")
        return number

    def whole(self, *, minimum: int, maximum: int) -> int:
        text = self.node.value if self._is_plain() else ""
        if not _WHOLE.fullmatch(text) or not minimum <= int(text) <= maximum:
            wanted = f"expected a whole number from {minimum:,} to {maximum:,}"
            raise self.fail(f"{wanted}, found {self._kind()}")
        return int(text)

    def boolean(self) -> bool:
        if not self._is_plain() or self.node.value not in _BOOLEANS:
            raise self.fail(f"expected true or false (without quotes), found {self._kind()}")
        return _BOOLEANS[self.node.value]

    def _is_plain(self) -> bool:
        """Whether it is a scalar without quotes."""
        return isinstance(self.node, yaml.ScalarNode) and not self.node.style

    def _kind(self) -> str:
        if isinstance(self.node, yaml.ScalarNode):
            return f"'{printable(shortened(self.node.value))}'" if self.node.tag != f"{_TAG}null" else "nothing"
        return "a list" if isinstance(self.node, yaml.SequenceNode) else "names with values"


def read_yaml(path: Path) -> Value:
    """The root of a YAML file."""
    try:
        with path.open("rb") as file:
            raw = file.read(MAX_BYTES + 1)  # stat() is no help: a device or a pipe has no size
        text = raw.decode()
    except OSError as error:
        raise YamlFileError(f"{path}: {(error.strerror or str(error)).lower()}") from None
    except UnicodeDecodeError as error:
        line = error.object[: error.start].count(b"\n") + 1
        raise YamlFileError(f"{path}:{line}: this is not UTF-8 text") from None
    if len(raw) > MAX_BYTES:
        raise YamlFileError(f"{path}: the file is larger than {MAX_BYTES // 1024 // 1024} MiB")
    return parse_yaml(text, str(path))


def parse_yaml(text: str, source: str) -> Value:
    """The root of a YAML text; `source` is its name in messages."""
    try:
        _check_depth(text, source)
        node = yaml.compose(text, Loader=_Loader)
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else 1
        problem = error.problem or error.context or ""
        hint = "; check the indentation of this line" if "mapping values" in problem else ""
        raise YamlFileError(f"{source}:{line}: not YAML: {problem}{hint}") from None
    except yaml.reader.ReaderError as error:
        raise YamlFileError(f"{source}: not YAML: {error.reason}") from None
    except (ValueError, OverflowError) as error:  # from the YAML reader itself, for some numbers
        raise YamlFileError(f"{source}: not YAML: {shortened(str(error))}") from None
    if node is None:
        raise YamlFileError(f"{source}:1: the file is empty")
    return Value(source, "", node)


def _check_depth(text: str, source: str) -> None:
    """Refuse deep nesting before the parser builds nodes, which takes a stack frame per level."""
    depth = 0
    for event in yaml.parse(text, Loader=_Loader):
        if isinstance(event, yaml.CollectionStartEvent):
            depth += 1
        elif isinstance(event, yaml.CollectionEndEvent):
            depth -= 1
        if depth > MAX_DEPTH:
            line = event.start_mark.line + 1
            raise YamlFileError(f"{source}:{line}: nested more than {MAX_DEPTH} levels deep")

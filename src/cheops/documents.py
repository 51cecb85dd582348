"""YAML files of users, read so that every complaint names file, line, place and remedy.

`read_document` gives the root as a `Value`; a reader takes it apart with the methods that say what it
expects (`record`, `mapping`, `items`, `number`, …). What is not as expected raises DocumentError. Scalars
keep the spelling of the file, so that a site called `no` or `1` stays that.
"""

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from math import inf, isnan, nan
from pathlib import Path

import yaml

from cheops.errors import ClientError
from cheops.text import listed, nearest

MAX_BYTES = 4 * 1024 * 1024
_TAG = "tag:yaml.org,2002:"
_TRUE = ("true", "yes", "on")


class DocumentError(ClientError):
    """A file cannot be read, or does not say what it should; the text starts with file and line."""


@dataclass(frozen=True, slots=True)
class Value:
    """A place in a document: where it is (`sites.site1.rtt_ms`) and what stands there."""

    source: str
    path: str
    node: yaml.Node

    def fail(self, problem: str) -> DocumentError:
        where = f"{self.path}: " if self.path else ""
        return DocumentError(f"{self.source}:{self.node.start_mark.line + 1}: {where}{problem}")

    def mapping(self) -> "dict[str, Value]":
        """Any names and their values; a name given twice is refused, since one would be lost."""
        if not isinstance(self.node, yaml.MappingNode):
            raise self.fail(f"expected names with values, found {self._kind()}")
        values: dict[str, Value] = {}
        for key, node in self.node.value:
            name = Value(self.source, self.path, key).string()
            value = Value(self.source, f"{self.path}.{name}" if self.path else name, node)
            if name in values:
                raise Value(self.source, self.path, key).fail(f"'{name}' is given twice")
            values[name] = value
        return values

    def record(self, *, required: tuple[str, ...] = (), optional: tuple[str, ...] = ()) -> "dict[str, Value]":
        """Known keys and their values; an unknown key is refused, since it would be without effect."""
        values = self.mapping()
        allowed = (*required, *optional)
        for name, value in values.items():
            if name not in allowed:
                meant = nearest(name, allowed)
                hint = f"did you mean '{meant}'? " if meant else ""
                raise value.fail(f"unknown key; {hint}Known here: {listed(allowed)}")
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
        number = nan
        if self.node.tag in (f"{_TAG}int", f"{_TAG}float"):
            with suppress(ValueError):  # YAML has more spellings of numbers than anybody expects: 1:30
                number = float(self.node.value)
        if isnan(number):
            raise self.fail(f"expected a number, found {self._kind()}")
        if not minimum <= number < inf:
            raise self.fail(f"expected a number of at least {minimum:g}, found {self._kind()}")
        return number

    def boolean(self) -> bool:
        if self.node.tag != f"{_TAG}bool":
            raise self.fail(f"expected true or false, found {self._kind()}")
        return str(self.node.value).lower() in _TRUE

    def _kind(self) -> str:
        if isinstance(self.node, yaml.ScalarNode):
            return f"'{self.node.value[:40]}'" if self.node.tag != f"{_TAG}null" else "nothing"
        return "a list" if isinstance(self.node, yaml.SequenceNode) else "names with values"


def read_document(path: Path) -> Value:
    """The root of a YAML file."""
    try:
        if path.stat().st_size > MAX_BYTES:
            raise DocumentError(f"{path}: the file is larger than {MAX_BYTES // 1024 // 1024} MiB")
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise DocumentError(f"{path}: {(error.strerror or str(error)).lower()}") from None
    except UnicodeDecodeError as error:
        line = error.object[: error.start].count(b"\n") + 1
        raise DocumentError(f"{path}:{line}: this is not UTF-8 text") from None
    return parse_document(text, str(path))


def parse_document(text: str, source: str) -> Value:
    """The root of a YAML text; `source` is how messages call it."""
    try:
        node = yaml.compose(text, Loader=yaml.SafeLoader)
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else 1
        raise DocumentError(f"{source}:{line}: not YAML: {error.problem or error.context}") from None
    except yaml.reader.ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        raise DocumentError(
            f"{source}:{line}: not YAML: the character U+{error.character:04X} is not allowed"
        ) from None
    except RecursionError:
        raise DocumentError(f"{source}: not accepted: it is nested too deeply") from None
    if node is None:
        raise DocumentError(f"{source}:1: the file is empty")
    return Value(source, "", node)

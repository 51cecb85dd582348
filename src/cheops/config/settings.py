"""How a setting is declared, and how a section of the configuration file is read from the declarations.

A section is a frozen dataclass and a setting is one of its fields. The declaration is the only place that knows the
setting's key, type, limits, default and documentation:

    @dataclass(frozen=True, slots=True)
    class HeartbeatConfig(Section):
        every_s: float = setting(DURATION, 1.0, "How often this site contacts each peer.")

The key is the field's name without its unit (`every`), unless `key=` says otherwise. `read_section` refuses unknown
keys, suggests the nearest known one, and reports missing keys and wrong values with file and line. A rule about several
settings, or a default that depends on another setting, belongs in the section's `complete`. The tables of
docs/configuration.md are generated from the same declarations (tests/config/reference.py).
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import MISSING, dataclass, field, fields, replace
from functools import cache
from typing import Any, ClassVar, Final, Self, TypeVar

from cheops.config.values import ValueType, read_names
from cheops.yaml_file import Value

REQUIRED: Final = MISSING
_UNITS = ("_s", "_ms", "_bytes")  # at the end of a field's name
_METADATA = "cheops.setting"


@dataclass(frozen=True, slots=True)
class Setting:
    """One key of a section."""

    key: str
    type: ValueType[Any]
    default: Any
    doc: str
    shown: str = ""  # the default in words, where it is computed
    group: str = ""  # the field that holds it, if that is an `inline` section

    @property
    def is_required(self) -> bool:
        return self.default is REQUIRED

    @property
    def default_text(self) -> str:
        """The default as documentation shows it; in backquotes if the file could contain it like this."""
        if self.shown:
            return self.shown
        if self.is_required:
            return "required"
        if self.type.settings and not self.type.is_named and self.default is not None:
            return "see below"
        if self.default is None or self.default == {}:
            return "none"
        return f"`{self.type.write(self.default)}`"


@dataclass(frozen=True, slots=True)
class Section:
    """A section of the file: a frozen dataclass whose fields are declared with the functions below."""

    # Keys that were settings once, and what to write instead.
    replaced: ClassVar[Mapping[str, str]] = {}

    def complete(self, value: Value) -> Self:  # noqa: ARG002 - for those that override it
        """Fill in defaults that depend on other settings; raise YamlFileError for settings that contradict each other.

        `value` is the section in the file; `place(value, key)` is the position for the message.
        """
        return self


S = TypeVar("S", bound=Section)


@dataclass(frozen=True, slots=True)
class _Inline:
    section: type[Section]


@dataclass(frozen=True, slots=True)
class _Alternatives:
    settings: tuple[Setting, ...]


def setting(type_: ValueType[Any], default: Any, doc: str, *, key: str = "", shown: str = "") -> Any:
    """A field that is one key of the file. `shown` describes the default in documentation, if it is computed."""
    metadata = {_METADATA: Setting(key, type_, default, doc, shown)}
    if default is REQUIRED:
        return field(metadata=metadata)
    if isinstance(default, dict):  # a dataclass takes no mutable default
        return field(default_factory=default.copy, metadata=metadata)
    return field(default=default, metadata=metadata)


def inline(section: type[Section]) -> Any:
    """A field that is a section without a key of its own: its settings are keys of the section around it."""
    return field(default_factory=section, metadata={_METADATA: _Inline(section)})


def alternatives(**settings: tuple[ValueType[Any], str]) -> Any:
    """A field that comes from exactly one of several keys, each with its type and documentation."""
    declared = tuple(Setting(key, type_, None, doc) for key, (type_, doc) in settings.items())
    return field(metadata={_METADATA: _Alternatives(declared)})


def section(cls: type[S], name: str = "section") -> ValueType[S]:
    """The type of a setting that is a section itself."""
    return ValueType(name, lambda value: read_section(cls, value), settings=settings_of(cls))


def named_sections(cls: type[S]) -> ValueType[dict[str, S]]:
    """The type of a setting with many sections, each under a name; the section's field `name` gets it."""

    def read(value: Value) -> dict[str, S]:
        return {name: read_section(cls, at, name=name) for name, at in read_names(value).items()}

    return ValueType("sections by name", read, settings=settings_of(cls), is_named=True)


def settings_of(cls: type[Section]) -> tuple[Setting, ...]:
    """The settings of a section, in the order of their declaration."""
    hashable: Any = cls  # every class is, but mypy does not see it for dataclasses
    return _settings_of(hashable)


def walk(settings: Iterable[Setting], path: str = "") -> Iterator[tuple[str, Setting]]:
    """These settings and all below them, each with its path in the file, such as `types.NAME.checkpoint.after`."""
    for one in settings:
        inner = f"{path}{one.key}"
        yield inner, one
        yield from walk(one.type.settings, f"{inner}.NAME." if one.type.is_named else f"{inner}.")


def read_section(cls: type[S], value: Value, **known: Any) -> S:
    """The section in a value of the file; `known` are fields that come from elsewhere."""
    for key, instead in cls.replaced.items():
        if is_set(value, key):
            raise place(value, key).fail(f"'{key}' is no longer a setting: {instead}")
    record = read_record(settings_of(cls), value)
    return _build(cls, value, {**known, **_field_values(cls, value, record)})


def read_settings(cls: type[S], value: Value) -> dict[str, Any]:
    """The fields of a section that the file sets, for a caller that completes them before it creates the section."""
    return _field_values(cls, value, read_record(settings_of(cls), value))


def read_record(settings: tuple[Setting, ...], value: Value) -> dict[str, Value]:
    """The keys of a section, none unknown and none missing."""
    return value.record(
        required=tuple(one.key for one in settings if one.is_required),
        optional=tuple(one.key for one in settings if not one.is_required),
    )


def place(value: Value, key: str) -> Value:
    """The value of a key, or the section itself without the key: the position for an error message about it."""
    return value.mapping().get(key, value)


def is_set(value: Value, key: str) -> bool:
    return key in value.mapping()


def default_of(cls: type, name: str) -> Any:
    """The default of a dataclass's field, for classes of the pure core that cannot declare settings themselves."""
    return next(one.default for one in fields(cls) if one.name == name)


def key_of(field_name: str) -> str:
    """A duration or a size carries its unit in the file's value, so the key has none."""
    unit = next((unit for unit in _UNITS if field_name.endswith(unit)), "")
    return field_name.removesuffix(unit)


@cache  # a file may have thousands of sections of one class
def _settings_of(cls: type[Section]) -> tuple[Setting, ...]:
    settings: list[Setting] = []
    for one in fields(cls):
        match one.metadata.get(_METADATA):
            case Setting() as declared:
                settings.append(replace(declared, key=declared.key or key_of(one.name)))
            case _Alternatives(several):
                settings += several
            case _Inline(inner):
                settings += (replace(declared, group=one.name) for declared in settings_of(inner))
    return tuple(settings)


def _field_values(cls: type[Section], value: Value, record: Mapping[str, Value]) -> dict[str, Any]:
    """The fields of a section that the file sets. The others keep their defaults."""
    values: dict[str, Any] = {}
    for one in fields(cls):
        match one.metadata.get(_METADATA):
            case Setting(key, type_):
                if at := record.get(key or key_of(one.name)):
                    values[one.name] = type_.read(at)
            case _Alternatives(settings):
                values[one.name] = _read_alternative(settings, value, record)
            case _Inline(inner):
                values[one.name] = _build(inner, value, _field_values(inner, value, record))
    return values


def _read_alternative(settings: tuple[Setting, ...], value: Value, record: Mapping[str, Value]) -> Any:
    present = [one for one in settings if one.key in record]
    if len(present) != 1:
        keys = " and ".join(one.key for one in present) or "none"
        raise value.fail(f"expected exactly one of {', '.join(one.key for one in settings)}; found {keys}")
    return present[0].type.read(record[present[0].key])


def _build(cls: type[S], value: Value, values: Mapping[str, Any]) -> S:
    return cls(**values).complete(value)

"""Resource types in the API's words."""

from collections.abc import Iterable

from cheops.api.models import Types, TypeView
from cheops.config.types import TypeConfig
from cheops.security.principal import Principal


def types_view(types: Iterable[TypeConfig], who: Principal) -> Types:
    """Those that somebody reaches."""
    reached = [one for one in types if who.reach.has_type(one.name, None)]
    return Types(types=tuple(map(_view, sorted(reached, key=lambda one: one.name))))


def _view(one: TypeConfig) -> TypeView:
    return TypeView(
        name=one.name,
        operations=one.matrix.types,
        allow=tuple(one.command.allow),
        reads=one.read is not None,
        resets=one.engine.reset is not None,
    )

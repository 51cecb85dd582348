"""Resource types of a site's configuration, as far as one needs to know to send an operation."""

from typing import Annotated

from msgspec import Struct

from cheops.api.models.says import says


class TypeView(Struct, frozen=True, kw_only=True):
    """A resource type."""

    name: Annotated[str, says("Its name.", "counter")]
    operations: Annotated[tuple[str, ...], says("The types of operations its matrix names.", ["set", "inc"])]
    allow: Annotated[
        tuple[str, ...], says("Patterns of the commands that operations may bring.", ["redis-cli set * *"])
    ]
    reads: Annotated[bool, says("Whether it can show the real state.", True)]
    resets: Annotated[bool, says("Whether it can be deleted without saying how.", True)]


class Types(Struct, frozen=True, kw_only=True):
    """The types of resources that this site is configured for."""

    types: Annotated[tuple[TypeView, ...], says("Sorted by name.")]

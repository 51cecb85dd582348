"""The wires of the demo."""

from typing import Annotated

from msgspec import Struct

from cheops.api.models.says import says


class Wiring(Struct, frozen=True, kw_only=True):
    """Which sites of the demo are cut from each other."""

    on: Annotated[bool, says("Whether this agent is in demo mode, and sites can be cut off.", False)]
    cut: Annotated[tuple[tuple[str, ...], ...], says("Pairs of sites without a way to each other.", [])]

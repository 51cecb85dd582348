"""Where a replicant is: which sites are asked for it."""

import asyncio
from itertools import count
from types import SimpleNamespace
from typing import Any, cast

import pytest

from cheops.backends.http.ids import may_be_made_at, meta_id_of
from cheops.backends.http.locations import Locations
from cheops.node.node import Node

SITES = ("site1", "site2", "site3")


class _Asked(Locations):
    """Only site1 knows anything, and says so."""

    def __init__(self) -> None:
        sites = {site: SimpleNamespace(up=True) for site in SITES}
        snapshot = SimpleNamespace(sites=sites, rtt_ms=lambda _here, _there: 1.0)
        node: Any = SimpleNamespace(name="site3", snapshot=lambda: snapshot)
        super().__init__(cast("Node", node))
        self.asked: list[str] = []

    async def known_here(self, _meta_id: str) -> tuple[str, ...]:
        return ()

    async def _sites_known_at(self, site: str, _meta_id: str) -> tuple[str, ...] | None:
        self.asked.append(site)
        return ("site1",) if site == "site1" else ()


@pytest.mark.parametrize("is_named", [True, False])
def test_a_name_is_asked_for_everywhere_and_an_id_first_where_it_was_made(is_named: bool) -> None:
    """A meta-id of a name may look as if a site had made it."""
    names = (meta_id_of("path", "image", f"/notes/{number}") for number in count())
    meta_id = next(one for one in names if may_be_made_at(one, "site2"))
    locations = _Asked()
    found = asyncio.run(locations.sites_of(meta_id, is_named=is_named))
    assert (found, sorted(locations.asked)) == ((("site1",), ["site1", "site2"]) if is_named else ((), ["site2"]))

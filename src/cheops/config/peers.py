"""The other sites, and the URL at which they reach this one.

All sites may share one list, so a site's own name is accepted in it and ignored; but it must say the same as
`advertise`. No two sites have one address.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from cheops.config.address import Address, place_of, url_at
from cheops.config.names import named_at
from cheops.config.paths import path_at
from cheops.documents import Value, read_document


class Peer(NamedTuple):
    """A URL, and where it is written."""

    at: Value
    url: str


def peers_at(value: Value, folder: Path) -> dict[str, Peer]:
    """Names and URLs, and where each stands: here, or in a file that all sites share."""
    held = read_document(path_at(value, folder)) if value.is_text else value
    return {name: Peer(at, url_at(at)) for name, at in named_at(held).items()}


def advertised(  # noqa: PLR0913, PLR0917 - all of it may say so
    root: Value,
    record: Mapping[str, Value],
    listen: Address,
    name: str,
    peers: Mapping[str, Peer],
    scheme: str = "http",
) -> str:
    """The URL at which others reach this site."""
    if "advertise" in record:
        return url_at(record["advertise"])
    if listen.is_wildcard and name in peers:
        return peers[name].url
    if listen.is_wildcard and peers:
        raise root.fail(
            f"'advertise' is missing: {listen} is all addresses of this machine, and peers need one, "
            f"such as advertise: {scheme}://10.0.0.1:{listen.port}"
        )
    return listen.url_as(scheme)


def others(name: str, advertise: str, peers: Mapping[str, Peer]) -> dict[str, str]:
    """The peers without the site itself; no two of them, nor the site, at one address."""
    places = {place_of(advertise): name}
    for peer, (at, url) in peers.items():
        if peer == name and url != advertise:
            raise at.fail(
                f"this site itself is at {advertise} (by 'advertise' or 'listen'), not at {url}; "
                "say the same in both places"
            )
        if (holder := places.setdefault(place_of(url), peer)) != peer:
            raise at.fail(f"{url} is the address of '{holder}' already; each site has its own")
    return {peer: url for peer, (_, url) in peers.items() if peer != name}

"""The checks of `cheops check` about other sites: this one reaches them, they reach it, and all are who they say.

Of a site that is up by what others say, this one knows nothing itself. So it counts as well only if no probe of it has
failed.
"""

import time
from collections.abc import Iterator

from cheops.api.models.site import Check, make_check
from cheops.node.node import Node
from cheops.peers.name_conflicts import NameConflict
from cheops.peers.views import SiteView
from cheops.text import in_words, listed, printable

_GROUP = "peers"
_SILENCE_S = 30.0  # others send a probe every few seconds


def peer_checks(node: Node, peers: list[SiteView]) -> Iterator[Check]:
    for peer in peers:
        channel = node.channels.get(peer.name)
        yield _reachability(peer, channel.via if channel else "")
    if time.monotonic() - node.created_s > _SILENCE_S:
        yield from arrivals(peers, node.mesh.own.url)
    for text in node.mesh.problems():
        yield make_check(_GROUP, "sites disagree on an identity", text, "see 'cheops site list'")
    yield from map(_name_conflict, node.mesh.name_conflicts())


def _reachability(peer: SiteView, relay: str) -> Check:
    """`relay` is the site by way of which it is reached, if it is."""
    seen = "never seen" if peer.contact_ms is None else f"last seen {peer.contact_ms / 1000:,.0f} s ago"
    detail = f"{seen}; {peer.problem}" if peer.problem else seen
    if peer.only_through_others or (peer.is_up and not peer.direct and peer.problem):
        hint = f"check that {peer.url or 'its address'} is reachable from here: other sites reach it"
        return make_check(_GROUP, f"{peer.name} is up, and cannot be reached from here", detail, hint)
    if peer.is_up:
        away = f"{peer.distance.rtt_ms:.1f} ms away" if peer.distance else "distance unknown"
        by_way = f", by way of {relay}: no direct connection can be made" if relay else ""
        return make_check(_GROUP, f"{peer.name} is up", f"{away}{by_way} {peer.note}".strip())
    hint = f"check that its agent runs and that {peer.url or 'its address'} is reachable from here"
    return make_check(_GROUP, f"{peer.name} is {peer.state.value}", detail, hint)


def arrivals(peers: list[SiteView], url: str) -> Iterator[Check]:
    """Whether others reach this site. One behind NAT reaches them, and would think that all is well."""
    answering = [peer for peer in peers if peer.is_up and peer.direct]
    ages_s = [peer.arrived_ms / 1000 for peer in answering if peer.arrived_ms is not None]
    if not answering or any(age_s <= _SILENCE_S for age_s in ages_s):
        return
    since = f"for {min(ages_s):,.0f} s" if ages_s else "since the agent started"
    names = in_words([peer.name for peer in answering])
    yield make_check(
        _GROUP,
        "no other site reaches this one",
        f"{names} {'answers' if len(answering) == 1 else 'answer'}, and nothing has come from there {since}",
        f"check that {url} is reachable from the other sites ('advertise', firewall, NAT); until then they cannot send "
        "this site what it lacks",
    )


def _name_conflict(conflict: NameConflict) -> Check:
    """Two agents of one name. With different certificates one may be a thief's; with the same it is a copy."""
    site = conflict.site
    if conflict.has_several_certificates:
        shown = [f"{printable(agent.url)} (certificate {agent.certificate})" for agent in conflict.agents]
        hint = (
            f"stop the agent that should not run. If it is not yours: 'cheops site invite {site} --again' ends the "
            "certificates of both, and the code is for your machine "
            "(docs/certificates-trouble.md#two-agents-of-one-name)"
        )
    else:
        shown = [f"{printable(agent.url)} (store {printable(agent.incarnation)})" for agent in conflict.agents]
        hint = (
            "the folder of this site was copied: stop the agent that should not run, and do not start it again "
            "(docs/certificates-trouble.md#two-agents-of-one-name)"
        )
    return make_check(_GROUP, f"two agents are called {site}", f"at {listed(shown)}", hint)

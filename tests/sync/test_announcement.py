"""Which sites a decision is sent to at once."""

from cheops.peers.prober import MOST_OPENED, announced_to


def test_a_decision_goes_to_all_sites_with_a_channel_and_opens_few_others() -> None:
    sites = [f"site{number:04}" for number in range(1_000)]
    near = set(sites[500:530])
    opened: set[str] = set()
    first = announced_to(sites, near.__contains__, opened)
    assert near <= set(first)
    assert len(first) == len(near) + MOST_OPENED
    again = announced_to(sites, near.__contains__, opened)
    assert set(again) == set(first), "the next round opens no more"


def test_in_a_small_mesh_all_get_it_at_once() -> None:
    sites = ["b", "c", "d"]
    assert announced_to(sites, lambda _site: False, set()) == sites

"""The budget of an operation: messages and bytes grow with the number of sites, and not with its square."""

from functools import cache

import pytest

from cheops.engine import hub
from cheops.engine.settings import RoundTrips
from cheops.peers import short_form
from cheops.peers.origin_tables import OriginTables
from cheops.sim.traffic import BYTES_PER_SITE, MESSAGES_PER_SITE, Traffic, measure

OUTPUT_LINES = 8


@cache
def measured(sites: int, output_lines: int = 0, *, signed: bool = False) -> Traffic:
    return measure(sites, operations=2, output_lines=output_lines, signed=signed)


@pytest.mark.parametrize("sites", [2, 3, 10, 20])
@pytest.mark.parametrize("delay_ms", [(1, 5), (300, 310)])
def test_an_operation_takes_at_most_four_messages_per_site(sites: int, delay_ms: tuple[int, int]) -> None:
    found = measure(sites, operations=3, delay_ms=delay_ms)
    assert found.messages <= MESSAGES_PER_SITE * sites
    # Each site gets the operation and the replies of all others once; the origin's comes with the operation.
    assert found.documents <= sites * (sites + 1)
    assert found.bytes <= BYTES_PER_SITE * sites


def test_the_budget_holds_at_fifty_sites() -> None:
    found = measured(50)
    assert found.messages <= MESSAGES_PER_SITE * 50
    assert found.bytes <= BYTES_PER_SITE * 50


def test_bytes_grow_nearly_as_the_number_of_sites() -> None:
    """Two and a half times as many sites; with the square, it would be more than six times as much."""
    assert measured(50).bytes < 1.3 * 2.5 * measured(20).bytes


def test_outputs_go_to_one_site() -> None:
    """Of 520 characters that hardly compress; each other site gets a hash of each."""
    more = measured(20, OUTPUT_LINES).bytes - measured(20).bytes
    assert more < 20 * 400 + 20 * 20 * 16


def test_signatures_are_what_is_left_of_the_square() -> None:
    """Each site gets two signatures of each other one: of its reply, and of its report."""
    more = measured(20, signed=True).bytes - measured(20).bytes
    assert more < 20 * 20 * 2 * 80 + 20 * 4 * 80


def test_without_a_hub_the_budget_is_broken(monkeypatch: pytest.MonkeyPatch) -> None:
    """As it was before: every site sends its replies to every other one itself."""
    monkeypatch.setattr(hub, "hub_of", lambda replica, _maker, _up: replica.site)
    assert measure(10, operations=2).messages > MESSAGES_PER_SITE * 10


def test_the_old_resend_rule_breaks_the_budget_on_slow_links(monkeypatch: pytest.MonkeyPatch) -> None:
    """As it was before: what is not acknowledged after 500 ms counts as lost, however far away a site is."""
    monkeypatch.setattr(RoundTrips, "patience_ms", lambda _self, _peer: 0)
    assert measure(10, operations=2, delay_ms=(300, 310)).messages > 2 * MESSAGES_PER_SITE * 10


def test_with_all_names_in_every_message_the_budget_is_broken(monkeypatch: pytest.MonkeyPatch) -> None:
    usual = measured(20).bytes
    monkeypatch.setattr(OriginTables, "form_of", lambda _self, origins: list(map(str, origins)))
    assert measure(20, operations=2).bytes > 1.5 * usual


def test_without_rows_the_budget_is_broken(monkeypatch: pytest.MonkeyPatch) -> None:
    usual = measured(20).bytes
    monkeypatch.setattr(short_form, "may_have_rows", lambda _reply: False)
    assert measure(20, operations=2).bytes > 1.2 * usual


def test_sites_know_the_outcome_of_all_others_as_soon_as_the_hub_does() -> None:
    found = measure(10, operations=2)
    assert found.converged_ms < 200, "of virtual time: three ways, a run, and no wait for a tick"

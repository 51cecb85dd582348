"""The feed of every store (see stores.py), and those of the sites, also of one that comes later."""

from cheops.engine.documents import Document, Ledger, SiteClock, Started, key_of
from cheops.log.causality import Clock
from cheops.log.operation import Operation, Verdict
from cheops.store.interface import Change, Store
from tests.store.documents import COUNTER, LYON, draft, forget, keys, operation, reply, save
from tests.store.stores import feed, feed_is

# -- the feed --------------------------------------------------------------------------------------------


def test_the_feed_has_what_is_shared_in_the_order_of_commits(store: Store) -> None:
    first = store.commit([save(operation("b", 1), SiteClock(Clock()), reply("b", 1)), save(COUNTER)])
    last = store.commit([save(operation("a", 1), Ledger("a"), draft("a", 2), Started("a", 2, None))])
    assert feed(store) == keys([operation("b", 1), reply("b", 1), COUNTER, operation("a", 1)])
    assert feed(store, since=first) == (key_of(operation("a", 1)),)
    assert feed(store, since=last) == ()
    assert store.last_seq() == last


def test_a_draft_enters_the_feed_once_when_it_is_decided(store: Store) -> None:
    first, second = draft("r", 1, ("lyon",)), draft("r", 2)
    assert store.commit([save(first), save(second)]) == 0
    store.commit([save(operation("r", 2))])
    store.commit([save(operation("r", 1, ("lyon",), Verdict.VOID))])
    for site in (None, "lyon"):
        feed_is(store, operation("r", 2), operation("r", 1), site=site)
    decided = store.read([key_of(first)])[key_of(first)]
    assert isinstance(decided, Operation)
    assert decided.verdict is Verdict.VOID


def test_a_draft_decided_in_the_same_commit_is_in_the_feed_once(store: Store) -> None:
    store.commit([save(draft("r", 1, ("lyon",))), save(operation("r", 1, ("lyon",)))])
    feed_is(store, operation("r", 1), site="lyon")
    feed_is(store, operation("r", 1))


def test_what_is_saved_again_keeps_its_number(store: Store) -> None:
    op = operation("r", 1, ("lyon",))
    last = store.commit([save(op, COUNTER, reply("r", 1))])
    assert store.commit([save(op, COUNTER), save(op)]) == last
    for site in (None, "lyon"):
        feed_is(store, op, COUNTER, reply("r", 1), site=site)
    assert store.commit([save(operation("r", 2))]) == last + 1


def test_what_is_forgotten_leaves_no_trace_and_its_number_is_not_given_again(store: Store) -> None:
    ops = [operation("r", seq, ("lyon",)) for seq in (1, 2, 3)]
    last = store.commit([save(*ops, COUNTER)])
    assert store.commit([forget(ops[1], ops[2], COUNTER)]) == last
    feed_is(store, ops[0])
    feed_is(store, ops[0], site="lyon")
    store.commit([save(ops[2])])
    feed_is(store, ops[2], since=last)
    feed_is(store, ops[2], site="lyon", since=last)


def test_the_feed_of_a_site_has_the_resources_that_involve_it_and_every_matrix(store: Store) -> None:
    ours, theirs = operation("a", 1, ("paris", "lyon")), operation("b", 1, ("paris", "brest"))
    store.commit([save(ours, theirs, COUNTER, reply("a", 1), reply("b", 1))])
    feed_is(store, ours, COUNTER, reply("a", 1), site="lyon")
    feed_is(store, theirs, COUNTER, reply("b", 1), site="brest")
    feed_is(store, COUNTER, site="nowhere")
    feed_is(store, ours, theirs, COUNTER, reply("a", 1), reply("b", 1), site="paris")


def test_the_numbers_of_a_site_are_those_of_the_whole_feed(store: Store) -> None:
    store.commit([save(operation("a", 1, ("lyon",)), operation("b", 1, ("brest",)), COUNTER, reply("a", 1))])
    assert set(store.changes(0, 10, "lyon")) < set(store.changes(0, 10))


def test_pages_of_the_feed(store: Store) -> None:
    ops = [operation("r", seq, ("lyon",) if seq == 1 else None) for seq in range(1, 12)]
    store.commit([save(op) for op in ops] + [save(COUNTER)])
    for site in (None, "lyon"):
        pages: list[Change] = []
        while page := store.changes(pages[-1].seq if pages else 0, 5, site):
            assert len(page) <= 5
            pages.extend(page)
        assert tuple(change.key for change in pages) == keys([*ops, COUNTER])
    assert store.changes(0, 0) == ()


# -- a site that comes later -----------------------------------------------------------------------------


def test_a_site_that_comes_later_finds_what_was_before(store: Store) -> None:
    earlier: list[Document] = [operation("r", 1, ("paris", "brest")), reply("r", 1), reply("r", 1, LYON)]
    store.commit([save(*earlier, operation("other", 1, ("lyon",)))])
    seen = store.last_seq()
    paris, whole = store.changes(0, 100, "paris"), store.changes(0, 100)
    invitation = operation("r", 2, ("paris", "lyon"))
    store.commit([save(invitation, reply("r", 2))])
    # lyon, which had read everything, has the past before what invited it, all beyond its checkpoint
    feed_is(store, *earlier, invitation, reply("r", 2), site="lyon", since=seen)
    # to others nothing happened but the news
    assert store.changes(0, len(paris), "paris") == paris
    assert store.changes(0, len(whole)) == whole
    feed_is(store, invitation, reply("r", 2), site="paris", since=seen)
    feed_is(store, invitation, reply("r", 2), since=seen)


def test_a_draft_brings_the_past_to_a_new_site_and_its_decision_comes_behind(store: Store) -> None:
    past = operation("r", 1, ("paris",))
    store.commit([save(past)])
    seen = store.commit([save(draft("r", 2, ("paris", "lyon")))])
    feed_is(store, past, site="lyon")
    store.commit([save(operation("r", 2, ("paris", "lyon")))])
    feed_is(store, operation("r", 2), site="lyon", since=seen)


def test_a_site_invited_within_one_commit_misses_nothing_of_it(store: Store) -> None:
    ops = [
        operation("r", 1, ("paris",)),
        operation("r", 2),
        operation("r", 3, ("paris", "lyon")),
        operation("r", 4),
    ]
    store.commit([save(*ops)])
    feed_is(store, *ops, site="lyon")
    feed_is(store, *ops, site="paris")


def test_several_sites_can_come_at_once_and_one_after_the_other(store: Store) -> None:
    ops = [operation("r", 1, ("paris",)), operation("r", 2, ("a", "b")), operation("r", 3, ("c", "a"))]
    for op in ops:
        store.commit([save(op)])
    for site in ("a", "b", "c", "paris"):
        feed_is(store, *ops, site=site)


def test_what_came_late_to_a_site_is_forgotten_like_the_rest(store: Store) -> None:
    past, invitation = operation("r", 1, ("paris",)), operation("r", 2, ("paris", "lyon"))
    store.commit([save(past, reply("r", 1))])
    last = store.commit([save(invitation)])
    store.commit([forget(past)])
    feed_is(store, reply("r", 1), invitation, site="lyon")
    store.commit([forget(reply("r", 1), invitation)])
    feed_is(store, site="lyon")
    feed_is(store)
    assert store.last_seq() == last
    store.commit([save(operation("r", 3, ("lyon",)))])
    feed_is(store, operation("r", 3), site="lyon", since=last)


def test_a_site_that_leaves_and_comes_back_has_everything_once(store: Store) -> None:
    ops = [
        operation("r", 1, ("paris", "lyon")),
        operation("r", 2, ("paris",)),
        operation("r", 3, ("paris", "lyon")),
    ]
    for op in ops:
        store.commit([save(op)])
    feed_is(store, *ops, site="lyon")

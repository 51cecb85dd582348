"""What every store must do (see stores.py): keep, forget, find; its feed is in test_feed.py."""

import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from cheops.engine.documents import Document, Key, Ledger, Peers, SiteClock, Started, key_of
from cheops.engine.events import Recovered, Save
from cheops.log.causality import Clock
from cheops.store.interface import CodecError, Store, StoreError
from tests.store.documents import COUNTER, FILE, draft, forget, keys, operation, reply, save
from tests.store.stores import STORES, feed
from tests.store.strategies import AWKWARD, contents


def loaded(store: Store, resource: str) -> dict[Key, Document]:
    documents = store.load(resource)
    result = {key_of(document): document for document in documents}
    assert len(result) == len(documents)
    return result


# -- keeping ---------------------------------------------------------------------------------------------


def test_a_new_store_is_empty(store: Store) -> None:
    assert store.load("r") == ()
    assert store.recovered() == Recovered(Clock(), (), ())
    assert (store.resources(), store.involving("paris"), store.last_seq()) == ((), (), 0)
    assert store.changes(0, 10) == store.changes(0, 10, "paris") == ()
    assert store.incarnation


def test_incarnations_differ(tmp_path: Path) -> None:
    for name, make in STORES.items():
        one, other = (make(_new_directory(tmp_path / f"{name}{n}")) for n in range(2))
        assert one.incarnation != other.incarnation
        one.close()
        other.close()


def _new_directory(path: Path) -> Path:
    path.mkdir()
    return path


def test_every_kind_of_document_is_kept(store: Store) -> None:
    of_resource: list[Document] = [
        operation("r", 1),
        draft("r", 2),
        reply("r", 1),
        Started("r", 1, None),
        Ledger("r"),
    ]
    of_site: list[Document] = [COUNTER, SiteClock(Clock(5, 1)), Peers({"lyon": "l1"})]
    store.commit([save(*of_resource, *of_site)])
    assert {key: contents(document) for key, document in loaded(store, "r").items()} == {
        key_of(document): contents(document) for document in of_resource
    }
    everything = [*of_resource, *of_site]
    assert store.read(keys(everything)).keys() == set(keys(everything))
    assert contents(store.read([key_of(COUNTER)])[key_of(COUNTER)]) == contents(COUNTER)


def test_load_gives_one_resource_and_no_other(store: Store) -> None:
    store.commit([save(operation("r", 1), operation("rr", 1), operation("R", 1), reply("r ", 1), COUNTER)])
    assert loaded(store, "r").keys() == {key_of(operation("r", 1))}


def test_a_document_is_overwritten_under_its_key(store: Store) -> None:
    store.commit([save(Ledger("r", unsynced=True))])
    store.commit([save(Ledger("r", base_applied=True))])
    assert store.load("r") == (Ledger("r", base_applied=True),)


def test_read_gives_what_is_there(store: Store) -> None:
    store.commit([save(operation("r", 1))])
    here, absent = key_of(operation("r", 1)), key_of(operation("r", 2))
    assert store.read([here, absent, ("clock",)]).keys() == {here}
    assert store.read([]) == {}


@pytest.mark.parametrize("name", AWKWARD, ids=ascii)
def test_any_name_will_do(store: Store, name: str) -> None:
    op = operation(name, 1, (name, "other"))
    store.commit([save(op, Ledger(name, unsynced=True))])
    store.put_note(name, {"name": name})
    assert len(store.load(name)) == 2
    assert store.resources() == store.involving(name) == store.recovered().unsynced == (name,)
    assert feed(store, name) == (key_of(op),)
    assert store.note(name) == {"name": name}
    store.commit([forget(op, Ledger(name))])
    assert (store.load(name), feed(store, name), store.resources()) == ((), (), ())


# -- one commit ------------------------------------------------------------------------------------------


def test_later_saves_of_a_commit_count(store: Store) -> None:
    store.commit([save(SiteClock(Clock(1, 0))), save(SiteClock(Clock(2, 0))), save(Ledger("r")), forget(Ledger("r"))])
    assert store.recovered().clock == Clock(2, 0)
    assert store.load("r") == ()


def test_saved_then_forgotten_in_one_commit_is_gone(store: Store) -> None:
    op = operation("r", 1, ("lyon",))
    store.commit([save(op), forget(op)])
    assert (store.load("r"), feed(store), feed(store, "lyon")) == ((), (), ())


def test_forgotten_then_saved_in_one_commit_is_there_with_a_new_number(store: Store) -> None:
    op, other = operation("r", 1, ("lyon",)), operation("r", 2)
    before = store.commit([save(op, other)])
    store.commit([forget(op), save(op)])
    assert len(store.load("r")) == 2
    for site in (None, "lyon"):
        assert feed(store, site) == (key_of(other), key_of(op))
        assert feed(store, site, before) == (key_of(op),)


def test_within_a_save_forgetting_goes_first(store: Store) -> None:
    store.commit([save(Started("r", 1, None))])
    store.commit([Save((Started("r", 2, None),), (("started", "r"),))])
    assert store.load("r") == (Started("r", 2, None),)


def test_nothing_to_commit_is_no_trouble(store: Store) -> None:
    assert store.commit([]) == store.commit([Save()]) == 0


def test_to_forget_what_is_not_there_is_no_trouble(store: Store) -> None:
    assert store.commit([forget(operation("r", 1), Ledger("r"), COUNTER)]) == 0


@pytest.mark.parametrize("bad", [operation("r\ud800", 1), operation("", 1), object()], ids=["text", "name", "object"])
def test_a_commit_that_raises_half_way_leaves_nothing(store: Store, bad: Document) -> None:
    kept = operation("r", 1, ("lyon",))
    before = store.commit([save(kept)])
    with pytest.raises(CodecError):
        store.commit([save(operation("r", 2, ("brest",)), Ledger("r", unsynced=True)), forget(kept), save(bad)])
    assert loaded(store, "r").keys() == {key_of(kept)}
    assert store.last_seq() == before
    assert feed(store) == feed(store, "lyon") == (key_of(kept),)
    assert (store.involving("brest"), store.recovered().unsynced) == ((), ())


# -- beginning again -------------------------------------------------------------------------------------


def test_what_a_site_begins_with(store: Store) -> None:
    ledgers = [Ledger(name, unsynced=name != "b") for name in "dbca"]
    store.commit([save(*ledgers, COUNTER, FILE, SiteClock(Clock(7, 3)), Peers({"lyon": "l1"}))])
    recovered = store.recovered()
    assert recovered.clock == Clock(7, 3)
    assert set(recovered.matrices) == {COUNTER, FILE}
    assert recovered.unsynced == ("a", "c", "d")
    assert recovered.peers == {"lyon": "l1"}


def test_a_resource_that_is_synced_or_gone_need_not_be_looked_after(store: Store) -> None:
    store.commit([save(Ledger("a", unsynced=True), Ledger("b", unsynced=True), Ledger("c"))])
    store.commit([save(Ledger("a"), Ledger("c", unsynced=True)), forget(Ledger("b"))])
    assert store.recovered().unsynced == ("c",)


# -- who is involved -------------------------------------------------------------------------------------


def test_who_is_or_was_on_a_list_is_involved(store: Store) -> None:
    store.commit([save(operation("b", 1, ("paris", "lyon")), operation("a", 1, ("lyon",)), operation("c", 1))])
    store.commit([save(operation("b", 2, ("paris",)))])
    assert store.involving("lyon") == ("a", "b")
    assert store.involving("paris") == ("b",)
    assert store.involving("brest") == ()


def test_a_draft_involves_too(store: Store) -> None:
    store.commit([save(draft("r", 1, ("lyon",)))])
    assert store.involving("lyon") == ("r",)


def test_who_was_involved_stays_so_when_the_operation_is_forgotten(store: Store) -> None:
    op = operation("r", 1, ("lyon",))
    store.commit([save(op, operation("r", 2))])
    store.commit([forget(op)])
    assert store.involving("lyon") == ("r",)
    store.commit([save(operation("r", 3))])
    assert feed(store, "lyon") == (key_of(operation("r", 2)), key_of(operation("r", 3)))


def test_nothing_is_left_of_a_resource_without_documents(store: Store) -> None:
    op = operation("r", 1, ("lyon",))
    store.commit([save(op, Ledger("r"))])
    store.commit([forget(op)])
    assert (store.involving("lyon"), store.resources()) == (("r",), ("r",))
    store.commit([forget(Ledger("r"))])
    assert (store.involving("lyon"), store.resources()) == ((), ())
    store.commit([save(operation("r", 2))])
    assert feed(store, "lyon") == ()


# -- resources -------------------------------------------------------------------------------------------


def test_resources_come_sorted_and_in_pages(store: Store) -> None:
    names = [f"r{number:02}" for number in range(25)] + ["Z", "é", "ß", "\U0001f600", "\uffff"]
    store.commit([save(*(operation(name, seq) for name in names for seq in (1, 2)), COUNTER, SiteClock(Clock()))])
    pages: list[str] = []
    after = ""
    while page := store.resources(after, 7):
        assert len(page) <= 7
        pages.extend(page)
        after = page[-1]
    assert pages == sorted(names)
    assert store.resources("r20", 2) == ("r21", "r22")
    assert store.resources("r205", 1) == ("r21",)
    assert store.resources(limit=0) == ()


# -- notes -----------------------------------------------------------------------------------------------


def test_notes_are_kept_overwritten_and_forgotten(store: Store) -> None:
    assert store.note("checkpoint") is None
    store.put_note("checkpoint", {"seq": 7, "deep": [{"x": None}]})
    store.put_note("other", {})
    assert store.note("checkpoint") == {"seq": 7, "deep": [{"x": None}]}
    store.put_note("checkpoint", {"seq": 8})
    assert (store.note("checkpoint"), store.note("other")) == ({"seq": 8}, {})
    store.put_note("checkpoint", None)
    store.put_note("never there", None)
    assert (store.note("checkpoint"), store.note("other")) == (None, {})
    assert store.last_seq() == 0


def test_a_note_is_a_copy(store: Store) -> None:
    note = {"list": [1]}
    store.put_note("n", note)
    note["list"].append(2)
    assert store.note("n") == {"list": [1]}


def test_a_note_that_is_not_plain_data_is_refused(store: Store) -> None:
    store.put_note("n", {"kept": True})
    for bad in ({"x": object()}, {"x": "\ud800"}):
        with pytest.raises(CodecError, match="not plain JSON data"):
            store.put_note("n", bad)
    assert store.note("n") == {"kept": True}


# -- threads, and the end --------------------------------------------------------------------------------


def test_a_follower_in_another_thread_sees_every_document_once_and_in_order(store: Store) -> None:
    count, seen = 60, []
    done = threading.Event()

    def follow() -> None:
        since, is_last_look = 0, False
        while True:
            for change in store.changes(since, 7, "lyon"):
                assert change.key in store.read([change.key])
                seen.append(change.key)
                since = change.seq
            if is_last_look and since == store.last_seq():
                return
            is_last_look = done.is_set()

    follower = threading.Thread(target=follow)
    follower.start()
    ops = [operation("r", seq, ("lyon",)) for seq in range(1, count + 1)]
    for op in ops:
        store.commit([save(op)])
    done.set()
    follower.join()
    assert tuple(seen) == keys(ops)


def test_a_closed_store_says_so(store: Store) -> None:
    store.close()
    store.close()
    calls: list[Callable[[], object]] = [
        lambda: store.commit([save(COUNTER)]),
        lambda: store.load("r"),
        store.recovered,
        lambda: store.involving("lyon"),
        store.resources,
        lambda: store.read([("clock",)]),
        store.last_seq,
        lambda: store.changes(0, 1),
        lambda: store.note("n"),
        lambda: store.put_note("n", {}),
    ]
    for call in calls:
        with pytest.raises(StoreError, match="the store is closed"):
            call()


# -- searching -------------------------------------------------------------------------------------------


def test_resources_are_found_by_a_part_of_their_id_and_by_site(store: Store) -> None:
    lists = {
        "Web-1": ("paris",),
        "web-2": ("paris", "lyon"),
        "api": ("lyon",),
        "50%_x": ("lyon",),
        "Éa": ("lyon",),
    }
    store.commit([save(*(operation(resource, 1, sites) for resource, sites in lists.items()))])
    assert store.search("wEB") == ("Web-1", "web-2")
    assert store.search("") == tuple(sorted(lists))
    assert store.search("web", after="Web-1") == ("web-2",)
    assert store.search("", limit=2) == tuple(sorted(lists))[:2]
    assert store.search("%_") == ("50%_x",)  # no signs with a meaning
    assert store.search("É") == ("Éa",)
    assert store.search("é") == ()  # only the letters of ASCII are the same in capitals
    assert store.search("web", "lyon") == ("web-2",)
    assert store.search("", "lyon", after="50%_x", limit=2) == ("api", "web-2")
    assert store.search("", "brest") == ()
    assert store.shares() == {"paris": 2, "lyon": 4}


def test_a_new_store_shares_nothing(store: Store) -> None:
    assert store.search("x") == store.search("x", "paris") == ()
    assert store.shares() == {}


# -- states ------------------------------------------------------------------------------------------------


def in_state(resource: str, state: str) -> Ledger:
    return Ledger(resource, state=state)


def test_resources_are_counted_and_found_by_their_state(store: Store) -> None:
    assert (store.states(), store.in_states(["diverged"])) == ({}, ())
    store.commit([save(*(in_state(f"r{n}", "converged") for n in range(5)), Ledger("without"), operation("r1", 1))])
    assert store.states() == {"converged": 5}
    store.commit([save(in_state("r3", "diverged")), save(in_state("r4", "converging"), in_state("r1", "converging"))])
    assert store.states() == {"converged": 2, "diverged": 1, "converging": 2}
    assert store.in_states(["diverged"]) == ("r3",)
    assert store.in_states(["diverged", "converging"]) == ("r1", "r3", "r4")
    assert store.in_states(["diverged", "converging"], after="r1", limit=1) == ("r3",)
    assert store.in_states(["diverged", "converging"], "R4") == ("r4",)
    assert store.in_states([]) == ()


def test_a_resource_that_changes_its_state_meanwhile_is_found(store: Store) -> None:
    store.commit([save(in_state("r", "converging"))])

    class States(list[str]):
        def __iter__(self) -> Iterator[str]:
            yield "converged"
            store.commit([save(in_state("r", "converged"))])
            yield "converging"

    assert store.in_states(States(["converged", "converging"])) == ("r",)


def test_one_commit_counts_what_is_left_in_the_end(store: Store) -> None:
    store.commit([save(in_state("r", "converging"))])
    store.commit([save(in_state("r", "diverged")), save(in_state("r", "converged")), save(in_state("s", "unknown"))])
    assert store.states() == {"converged": 1, "unknown": 1}
    store.commit([forget(in_state("r", "")), save(Ledger("s"))])
    assert (store.states(), store.in_states(["converged", "unknown"])) == ({}, ())


def test_a_site_narrows_the_resources_in_a_state(store: Store) -> None:
    store.commit([save(operation("r", 1, ("lyon",)), in_state("r", "diverged"), in_state("s", "diverged"))])
    assert store.in_states(["diverged"], site="lyon") == ("r",)
    assert store.in_states(["diverged"], site="nice") == ()


def test_a_commit_that_fails_counts_nothing(store: Store) -> None:
    store.commit([save(in_state("r", "converged"))])
    with pytest.raises(CodecError):
        store.commit([save(in_state("r", "diverged"), operation("r", 1, line="x" * 9_000_000))])
    assert store.states() == {"converged": 1}


# -- space -------------------------------------------------------------------------------------------------


def test_a_resource_without_documents_is_reported_until_everybody_has_forgotten_it(store: Store) -> None:
    both = operation("gone", 1), operation("stays", 1)
    store.commit([save(*both)])
    assert store.dropped() == ()
    store.commit([forget(both[0])])
    assert store.dropped() == ("gone",)
    store.clear_dropped(["gone"])
    assert store.dropped() == ()


def test_a_resource_that_is_created_again_is_not_reported(store: Store) -> None:
    store.commit([save(operation("r", 1))])
    store.commit([forget(operation("r", 1))])
    store.commit([save(operation("r", 2))])
    assert store.dropped() == ()
    store.commit([forget(operation("r", 2))])
    assert store.dropped() == ("r",)
    store.commit([save(operation("r", 3))])
    store.clear_dropped([])
    store.commit([save(operation("other", 1))])
    assert store.dropped() == ()


def test_space_tells_live_from_dead(store: Store) -> None:
    store.commit([save(operation("r", 1), Ledger("r", state="converged"))])
    live = store.space()
    assert (live.documents, live.dead_resources, live.dead) == (2, 0, 0)
    store.commit([save(operation("d", 1), Ledger("d", state="deleted"))])
    both = store.space()
    assert (both.documents, both.dead_resources) == (4, 1)
    assert both.dead > 0

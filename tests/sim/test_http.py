"""Histories with HTTP services behind gateways: no site says CONVERGED where the services differ."""

import pytest

from cheops.sim.http_service import Files, KeyValues, Ledger, Notes, Store
from cheops.sim.simulation import play
from cheops.sim.workload import PROFILES

_CHUNK = 3
_CHUNKS = 2


@pytest.mark.parametrize("chunk", range(_CHUNKS))
def test_services_agree_or_sites_say_that_they_do_not(chunk: int) -> None:
    for seed in range(chunk * _CHUNK, (chunk + 1) * _CHUNK):
        outcome = play(seed, 3, PROFILES["http"])
        assert outcome.problems == (), f"cheops sim --seed {seed} --sites 3 --profile http"


@pytest.mark.parametrize("seed", [86, 109, 229, 287, 453, 475, 530])
def test_histories_that_once_ended_badly(seed: int) -> None:
    assert play(seed, 3, PROFILES["http"]).problems == ()


def test_a_history_with_services_is_the_same_every_time() -> None:
    assert play(7, 3, PROFILES["http"]) == play(7, 3, PROFILES["http"])


def test_services_stop_between_doing_and_answering() -> None:
    injected = play(0, 3, PROFILES["http"]).injected + play(1, 3, PROFILES["http"]).injected
    assert injected["service stopped after its effect"]
    assert injected["crash"]
    assert injected["request sent"] > 50


class TestModelServices:
    def test_notes_have_ids_of_their_own_at_each_site(self) -> None:
        assert [Notes(site).handle("POST", "/notes", b'{"text":"x"}')[1] for site in (0, 1)] == [
            {"id": 1, "text": "x"},
            {"id": 41, "text": "x"},
        ]

    def test_a_collection_takes_its_files_with_it_and_can_be_made_again(self) -> None:
        files = Files(0)
        assert files.handle("PUT", "/d/f", b'{"value":"x"}')[0] == 409
        assert files.handle("MKCOL", "/d", b"")[0] == 201
        assert files.handle("MKCOL", "/d", b"")[0] == 405
        assert files.handle("PUT", "/d/f", b'{"value":"x"}')[0] == 201
        assert files.handle("PROPFIND", "/d/f", b"")[0] == 207
        assert files.handle("GET", "/d/f", b"") == (200, {"value": "x"})
        assert files.handle("DELETE", "/d", b"")[0] == 204
        assert files.handle("DELETE", "/d", b"")[0] == 404
        assert files.handle("MKCOL", "/d", b"")[0] == 201
        assert list(files.entries) == ["/d"]

    def test_a_comment_needs_its_note_and_goes_with_it(self) -> None:
        notes = Notes(0)
        assert notes.handle("POST", "/notes/1/comments", b'{"text":"x"}')[0] == 404
        notes.handle("POST", "/notes", b'{"text":"x"}')
        assert notes.handle("POST", "/notes/1/comments", b'{"text":"y"}')[0] == 201
        assert notes.handle("PUT", "/notes/1/tags/red", b'{"value":"z"}')[0] == 201
        assert notes.handle("POST", "/notes", b'{"text":"x","ref":9}')[0] == 409
        assert notes.handle("DELETE", "/notes/1", b"")[0] == 204
        assert dict(notes.registers()) == {}

    def test_an_object_needs_its_bucket_and_a_new_one_has_no_tags(self) -> None:
        store = Store(0)
        assert store.handle("PUT", "/b/k", b'{"value":"x"}')[0] == 404
        store.handle("PUT", "/b", b'{"made":"x"}')
        assert store.handle("PUT", "/b/k?tagging", b'{"value":"x"}')[0] == 404
        store.handle("PUT", "/b/k", b'{"value":"x"}')
        store.handle("PUT", "/b/k?tagging", b'{"value":"t"}')
        assert store.handle("DELETE", "/b", b"")[0] == 409
        store.handle("PUT", "/b/k", b'{"value":"y"}')
        assert dict(store.registers()) == {"/b#made": "x", "/b/k#value": "y"}

    def test_the_body_names_the_key(self) -> None:
        kv = KeyValues(0)
        kv.handle("POST", "/kv/put", b'{"key":"a","value":1}')
        assert kv.handle("POST", "/kv/range", b'{"key":"a"}') == (200, {"kvs": [{"value": 1}]})
        kv.handle("POST", "/kv/delete", b'{"key":"a"}')
        assert dict(kv.registers()) == {}

    def test_transactions_are_not_idempotent(self) -> None:
        ledger = Ledger(0)
        ledger.handle("POST", "/txn", b'{"account":"a","add":2}')
        ledger.handle("POST", "/txn", b'{"account":"a","add":2}')
        assert ledger.handle("POST", "/txn", b'{"account":"a","add":-5}') == (200, {"succeeded": False})
        assert dict(ledger.registers()) == {"/a#value": 4}

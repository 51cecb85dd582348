"""What is believed of what comes in: keys, forgotten sites, and that nothing says we have what was dropped."""

import asyncio
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

from cheops.engine.documents import Message, Snapshot
from cheops.engine.intake import FUTURE_STAMP, Objection
from cheops.errors import CheopsError
from cheops.log.operation import Operation, Origin, Reply, Seal, Stamp, Statement, Status, Timing, seal_hash
from cheops.peers.heartbeat import MembershipRecord
from cheops.peers.intake import (
    FORGOTTEN_ORIGIN,
    NOT_SIGNED,
    UNKNOWN_KEY,
    WRONG_SIGNATURE,
    DocumentVerifier,
)
from cheops.peers.site_keys import (
    MOST_KEYS,
    SiteCertificates,
    certificates_in,
    certificates_of_note,
    verify_certificates,
)
from cheops.security.audit import AuditWriter
from cheops.security.certificates import Identity
from cheops.security.keyring import KeyFolder
from cheops.security.refusals import OTHERS, RefusalLog, Refusals
from cheops.security.signatures import key_id
from tests.security.pki import Pki
from tests.security.rogue import changed, signed
from tests.security.test_signatures import operation, reply

NOW_S = 1_800_000_000.0
NOW_MS = int(NOW_S * 1000)


class Keys:
    """Knows some, and finds others when it asks."""

    def __init__(self, *known: Identity, found: Sequence[Identity] = ()) -> None:
        self.known = {(one.site, key_id(one.signing_key)): one for one in known}
        self.found = found
        self.asked: list[tuple[dict[str, set[str]], str]] = []

    def get(self, site: str, key: str) -> Identity | None:
        return self.known.get((site, key))

    async def learn(self, wanted: Mapping[str, set[str]], sender: str) -> None:
        if wanted:
            self.asked.append((dict(wanted), sender))
        self.known |= {(one.site, key_id(one.signing_key)): one for one in self.found}


@pytest.fixture(scope="module")
def pki() -> Pki:
    return Pki()


@pytest.fixture(scope="module")
def folders(pki: Pki, tmp_path_factory: pytest.TempPathFactory) -> dict[str, KeyFolder]:
    base = tmp_path_factory.mktemp("folders")
    return {name: pki.site(base / name, name, made_s=NOW_S - 86_400) for name in "ab"}


def trust(keys: Keys, forgotten_ms: int | None = None, involved: str = "") -> DocumentVerifier:
    async def is_involved(site: str, _resource: str) -> bool:
        return site in involved

    def member_of(site: str) -> MembershipRecord | None:
        return MembershipRecord(site, forgotten_ms, True) if forgotten_ms and site == "a" else None

    refusal_log = RefusalLog(Refusals(), AuditWriter(Path("never-started.log")))
    return DocumentVerifier(keys, refusal_log, member_of, is_involved, clock_skew_s=60, now_s=lambda: NOW_S)


def stamped(folder: KeyFolder, at_ms: int = NOW_MS - 5_000, **changes: Any) -> Operation:
    op = operation()
    found: Operation = signed(changed(op, stamp=Stamp(at_ms, 0, op.origin), **changes), folder)
    return found


def answered(folder: KeyFolder, at_ms: int = NOW_MS - 5_000, n: int = 1) -> Reply:
    found: Reply = signed(structs.replace(reply(n=n), timing=Timing(at_ms, 3)), folder)
    return found


def reasons(judge: DocumentVerifier, *documents: Operation | Reply, sender: str = "b") -> list[str | None]:
    found: dict[int, Objection] = asyncio.run(judge.objections(sender, documents))
    return [found[id(one)].reason if id(one) in found else None for one in documents]


def _root(op: Operation) -> Stamp:
    return Stamp(NOW_MS - 5_000, 0, op.origin)


def stating(folder: KeyFolder | None, op: Operation) -> Statement:
    """What site b states for a seal of this operation, signed with the keys in a folder."""
    statement = Statement(op.resource, Origin("b", "1"), seal_hash({}, (op.origin, Origin("b", "1")), _root(op)), 0)
    found: Statement = signed(statement, folder) if folder else statement
    return found


def test_a_seal_is_judged_by_the_keys_of_all_its_sites(folders: dict[str, KeyFolder]) -> None:
    a, b = folders["a"], folders["b"]
    judge = trust(Keys(a.identity, b.identity))
    op = operation()

    def sealing(statement: Statement) -> Operation:
        return stamped(a, seal=Seal({}, _root(op), (op.origin, Origin("b", "1")), (statement,)))

    good = stating(b, op)
    forged = structs.replace(good, signature=stating(a, op).signature)
    altered = structs.replace(stating(b, op), signature=signed(structs.replace(good, made=3), b).signature)
    found = reasons(judge, sealing(good), sealing(stating(None, op)), sealing(forged), sealing(altered))
    assert found == [None, NOT_SIGNED, UNKNOWN_KEY, WRONG_SIGNATURE]


def test_a_statement_that_its_site_has_not_signed_is_not_kept(folders: dict[str, KeyFolder]) -> None:
    judge = trust(Keys(folders["a"].identity, folders["b"].identity))
    good, bad = stating(folders["b"], operation()), stating(None, operation())
    messages = [Message(good.resource, "1", statements=(one,)) for one in (good, bad)]
    taken = asyncio.run(judge.verify("b", messages))
    assert [message.statements for message in taken] == [(good,), ()]


def test_each_document_is_judged_by_the_key_of_its_origin(folders: dict[str, KeyFolder]) -> None:
    a, b = folders["a"], folders["b"]
    judge = trust(Keys(a.identity, b.identity))
    good, of_another = stamped(a), stamped(b)
    assert reasons(judge, good, of_another, changed(good, why="x"), changed(good, signature="")) == [
        None,
        UNKNOWN_KEY,
        WRONG_SIGNATURE,
        NOT_SIGNED,
    ]
    assert reasons(judge, answered(a), answered(b), changed(answered(a), status=Status.KO)) == [
        None,
        UNKNOWN_KEY,
        WRONG_SIGNATURE,
    ]


def test_a_key_that_is_not_known_is_asked_for_once_per_message(folders: dict[str, KeyFolder]) -> None:
    keys = Keys(found=[folders["a"].identity])
    assert reasons(trust(keys), stamped(folders["a"]), answered(folders["a"]), sender="b") == [None, None]
    assert keys.asked == [({"a": {key_id(folders["a"].identity.signing_key)}}, "b")]


@pytest.mark.parametrize(("ahead_s", "reason"), [(-(10**6), None), (0, None), (59, None), (61, FUTURE_STAMP)])
def test_stamps_may_be_ahead_by_as_much_as_clocks_may_differ(
    folders: dict[str, KeyFolder], ahead_s: int, reason: str | None
) -> None:
    op = stamped(folders["a"], NOW_MS + ahead_s * 1000)
    assert reasons(trust(Keys(folders["a"].identity)), op) == [reason]


def test_what_comes_too_early_may_come_again_unless_it_never_will_be_time(folders: dict[str, KeyFolder]) -> None:
    judge = trust(Keys(folders["a"].identity))
    soon, never = stamped(folders["a"], NOW_MS + 100_000), stamped(folders["a"], 2 * NOW_MS)
    found = asyncio.run(judge.objections("b", [soon, never]))
    assert (found[id(soon)].later, found[id(never)].later) == (True, False)


@pytest.mark.parametrize(
    ("made_ms", "sender", "reason"),
    [
        (NOW_MS - 20_000, "b", None),  # before it was forgotten, whoever brings it
        (NOW_MS - 20_000, "", None),
        (NOW_MS - 1_000, "b", FORGOTTEN_ORIGIN),
        (NOW_MS - 1_000, "a", FORGOTTEN_ORIGIN),
        (NOW_MS - 1_000, "", FORGOTTEN_ORIGIN),  # by way of a database, which is nobody
        (NOW_MS - 1_000, "c", None),  # a site of the resource, which had not heard of it
    ],
)
def test_of_a_forgotten_site(folders: dict[str, KeyFolder], made_ms: int, sender: str, reason: str | None) -> None:
    judge = trust(Keys(folders["a"].identity), forgotten_ms=NOW_MS - 10_000, involved="ac")
    documents = (stamped(folders["a"], made_ms, sites=None), answered(folders["a"], made_ms))
    assert reasons(judge, *documents, sender=sender) == [reason, reason]


@pytest.mark.parametrize(("sender", "reason"), [("b", None), ("d", FORGOTTEN_ORIGIN), ("a", FORGOTTEN_ORIGIN)])
def test_a_resource_that_a_forgotten_site_made_comes_by_the_sites_that_it_names(
    folders: dict[str, KeyFolder], sender: str, reason: str | None
) -> None:
    """Otherwise what others wrote there, before they heard of the decision, would never arrive."""
    judge = trust(Keys(folders["a"].identity), forgotten_ms=NOW_MS - 10_000, involved="")
    made = stamped(folders["a"], NOW_MS - 1_000, sites=("a", "b", "c"), deps={})
    assert reasons(judge, made, sender=sender) == [reason]
    later = stamped(folders["a"], NOW_MS - 1_000, sites=("a", "b", "c"), seq=2, deps={made.origin: 1})
    assert reasons(judge, later, sender=sender) == [FORGOTTEN_ORIGIN]


def test_a_key_that_is_newer_than_the_forgetting_counts(pki: Pki, tmp_path: Path) -> None:
    again = pki.site(tmp_path / "a", "a", made_s=NOW_S - 5)
    judge = trust(Keys(again.identity), forgotten_ms=NOW_MS - 10_000)
    assert reasons(judge, stamped(again, NOW_MS)) == [None]


def test_whoever_sends_nothing_but_lies_is_not_checked_for_ever(folders: dict[str, KeyFolder]) -> None:
    judge = trust(Keys(folders["a"].identity))
    lies = [changed(stamped(folders["a"]), why=f"{n}") for n in range(2, 400)]
    assert set(reasons(judge, *lies)) == {WRONG_SIGNATURE}
    assert judge._verifier.checked <= 200


# -- nothing says that we have it ------------------------------------------------------------------------


def admitted(judge: DocumentVerifier, message: Message) -> Message:
    (found,) = asyncio.run(judge.verify("b", [message]))
    return found


def test_a_message_loses_what_is_bad_and_keeps_the_rest(folders: dict[str, KeyFolder]) -> None:
    a = folders["a"]
    good, bad = stamped(a), changed(stamped(a, seq=2), why="x")
    message = Message("r", "i", (good, bad), known={Origin("b", "1"): 3}, ask=True)
    assert admitted(trust(Keys(a.identity)), message) == structs.replace(message, ops=(good,))
    whole = structs.replace(message, ops=(good,))
    assert admitted(trust(Keys(a.identity)), whole) is whole


def test_a_reply_that_is_dropped_leaves_a_gap_that_shows(folders: dict[str, KeyFolder]) -> None:
    """`replies_after` says that nothing is missing in between; of this origin it is not true any more."""
    a, b = folders["a"], folders["b"]
    bad, good = changed(answered(a, n=4), output="lies"), answered(a, n=5)
    other: Reply = signed(structs.replace(reply(Origin("b", "1"), n=2)), b)
    after = {bad.origin: 3, other.origin: 1}
    message = Message("r", "i", replies=(bad, good, other), replies_after=after)
    found = admitted(trust(Keys(a.identity, b.identity)), message)
    assert found.replies == (good, other)
    assert found.replies_after == {other.origin: 1}


def test_a_snapshot_counts_as_a_whole_or_not_at_all(folders: dict[str, KeyFolder]) -> None:
    a = folders["a"]
    good, bad = stamped(a), changed(stamped(a, seq=2), why="x")
    snapshot = Snapshot({good.origin: 2}, {}, None, None, ())
    message = Message("r", "i", (good, bad), snapshot=snapshot)
    found = admitted(trust(Keys(a.identity)), message)
    assert (found.ops, found.snapshot) == ((), None)
    whole = structs.replace(message, ops=(good,))
    assert admitted(trust(Keys(a.identity)), whole).snapshot == snapshot


# -- certificates ----------------------------------------------------------------------------------------


def test_certificates_are_kept_one_for_each_key(pki: Pki, tmp_path: Path) -> None:
    known = SiteCertificates("a")
    first, second = (pki.site(tmp_path / name, "a").identity for name in ("one", "two"))
    assert [known.add(one) for one in (first, second, first)] == [True, True, False]
    again = certificates_of_note("a", known.note())
    assert again.get(key_id(first.signing_key)) == first
    assert again.certificates == [first.der, second.der]


def test_a_renewed_certificate_takes_the_place_of_the_one_before(pki: Pki, tmp_path: Path) -> None:
    known, old = SiteCertificates("a"), pki.site(tmp_path / "a", "a", made_s=time.time() - 1000).identity
    new = replace(old, made_ms=old.made_ms + 1)
    assert [known.add(one) for one in (old, new, old)] == [True, True, False]
    assert known.get(key_id(old.signing_key)) is new


def test_only_certificates_of_the_mesh_are_taken(pki: Pki, tmp_path: Path) -> None:
    folder, elsewhere = pki.site(tmp_path / "a", "a"), Pki().site(tmp_path / "b", "a")
    told = SiteCertificates("a")
    told.add(folder.identity)
    assert verify_certificates("a", told.note(), folder.authorities) == [folder.identity]
    with pytest.raises(CheopsError, match="asked for 'b', and got a certificate of 'a'"):
        verify_certificates("b", told.note(), folder.authorities)
    false = SiteCertificates("a")
    false.add(elsewhere.identity)
    with pytest.raises(Exception, match="unknown authority"):
        verify_certificates("a", false.note(), folder.authorities)


@pytest.mark.parametrize(
    "told",
    [
        None,
        [],
        {},
        {"certificates": 1},
        {"certificates": ["?"]},
        {"certificates": [1]},
        {"certificates": ["AA=="] * 65},
    ],
)
def test_what_is_no_answer_is_refused(told: object) -> None:
    with pytest.raises(CheopsError):
        certificates_in(told)


def test_a_site_has_so_many_keys_and_no_more(pki: Pki, tmp_path: Path) -> None:
    known, one = SiteCertificates("a"), pki.site(tmp_path / "a", "a").identity
    for number in range(MOST_KEYS):
        known.add(replace(one, signing_key=b"%d" % number))
    with pytest.raises(CheopsError, match="no more"):
        known.add(one)


# -- counting --------------------------------------------------------------------------------------------


def test_refusals_are_counted_by_reason_and_sender_within_bounds() -> None:
    refusals = Refusals(lambda: 5.0)
    for number in range(200):
        refusals.count("future stamp", f"site{number}", "x" * 1000)
    for number in range(200):
        refusals.count(f"reason {number}", "a\\nb")
    found = refusals.all()
    assert refusals.total() == 400
    assert refusals.total("future stamp") == 200
    assert len(found) <= 152
    assert next(one for one in found if one.who == OTHERS and one.reason == "future stamp").times == 150
    assert all(len(one.detail) <= 300 and one.last_s == 5.0 for one in found)

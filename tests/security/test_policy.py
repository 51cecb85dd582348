"""Who may say what of a resource: at submit, on receipt, and that honest sites never fall apart over it."""

from dataclasses import replace
from typing import Any

import pytest
from msgspec import structs

from cheops.config.site import parse_site
from cheops.engine import admission
from cheops.engine.admission import waiting_for_refused
from cheops.engine.documents import Base, Message, Snapshot
from cheops.engine.events import Received
from cheops.engine.replica import Replica
from cheops.log.matrix import Entry, Matrix, Result
from cheops.log.operation import (
    Command,
    Kind,
    MatrixRef,
    Operation,
    OpId,
    Origin,
    Reply,
    Seal,
    Stamp,
    Statement,
    Status,
    Verdict,
    seal_hash,
)
from cheops.log.policy import Policy, SiteGroup, operation_violation
from cheops.sim import apps, world
from cheops.sim.apps import COUNTER
from cheops.sim.simulation import play
from cheops.sim.workload import PROFILES
from cheops.yaml_file import YamlFileError
from tests.engine.lab import Lab

INVOLVED = Policy(SiteGroup.INVOLVED, SiteGroup.INVOLVED, SiteGroup.INVOLVED)
OTHER_RULES = Matrix((Entry("set", "set", Result.TAKE_ONE),))


def lab_with(policy: Policy | None, sites: str = "abcd", at: str = "abc") -> Lab:
    lab = Lab(sites)
    lab.make("n", COUNTER, at, policy=policy)
    lab.submit("a", "n", "set 10")
    lab.run()
    return lab


def told(lab: Lab, *words: str) -> list[str]:
    return [line for line in lab.output if all(word in line for word in words)]


def known(lab: Lab, site: str) -> set[str]:
    return {str(id_) for id_ in lab.at(site, "n").history.ops}


def made(lab: Lab, site: str, **changes: Any) -> Operation:
    """What an agent that keeps to no policy would make: signed by its own site, and well-formed."""
    replica = lab.replica(site, "n")
    history = replica.history if replica else None
    origin = replica.origin if replica else Origin(site, f"{site}1")
    seq = history.known.get(origin, 0) + 1 if history else 1
    stamp = Stamp(lab.now_ms + 1_000, 0, origin)
    fields: dict[str, Any] = {
        "resource": "n",
        "rtype": "n",
        "type": "inc",
        "kind": Kind.NORMAL,
        "payload": Command("inc 5"),
        "origin": origin,
        "seq": seq,
        "deps": dict(history.known) if history else {},
        "stamp": stamp,
        "matrix": history.adopted if history else MatrixRef(COUNTER.matrix.hash, stamp),
        "verdict": Verdict.OK,
    }
    return Operation(**{**fields, **changes})


def hand(lab: Lab, to: str, sender: str, *ops: Operation, **more: Any) -> Replica:
    message = Message("n", f"{sender}1", tuple(ops), **{"matrices": (COUNTER.matrix, OTHER_RULES), **more})
    lab.take(to, Received(sender, message))
    return lab.at(to, "n")


# -- at submit -------------------------------------------------------------------------------------------


def test_who_made_it_may_change_its_sites_and_others_hear_who_may() -> None:
    lab = lab_with(Policy())
    lab.move("b", "n", "abcd")
    assert told(lab, "b", "only a, which made it, may change its list of sites (policy 'sites: creator' of its type)")
    lab.move("a", "n", "abcd")
    lab.run()
    assert lab.at("d", "n").history.site_list == ("a", "b", "c", "d")
    lab.submit("d", "n", "inc 1")  # a site that was added operates like the others
    lab.run()
    assert lab.states("n", "abcd") == [11] * 4


def test_who_made_it_may_change_the_matrix() -> None:
    lab = lab_with(Policy())
    lab.submit("b", "n", "set 3", matrix=OTHER_RULES)
    assert told(lab, "only a, which made it, may change its matrix (policy 'matrix: creator'")
    lab.submit("b", "n", "set 3", matrix=COUNTER.matrix)  # the one in force is no change
    lab.submit("a", "n", "set 4", matrix=OTHER_RULES)
    lab.run()
    assert {lab.at(site, "n").matrix.hash for site in "abc"} == {OTHER_RULES.hash}


def test_the_creator_is_still_known_when_its_first_operation_is_forgotten() -> None:
    lab = lab_with(Policy())
    lab.move("a", "n", "abcd")
    for number in range(4):
        lab.submit("a", "n", f"set {number}", matrix=OTHER_RULES)
        lab.run()
    lab.pass_time(5_000)
    lab.run()
    assert "a:1" not in known(lab, "b")
    lab.move("b", "n", "ab")
    assert told(lab, "only a, which made it")
    lab.move("a", "n", "ab")
    lab.run()
    assert lab.at("b", "n").history.site_list == ("a", "b")


def test_lists_of_sites() -> None:
    lab = lab_with(Policy(sites=("b",), matrix=(), operate=("a", "b")))
    lab.submit("c", "n", "inc 1")
    lab.submit("a", "n", "set 1", matrix=OTHER_RULES)
    lab.move("a", "n", "ab")
    assert told(lab, "only a and b may operate on it (policy 'operate: [a, b]' of its type), not c")
    assert told(lab, "only nobody may change its matrix (policy 'matrix: []' of its type), not a")
    assert told(lab, "only b may change its list of sites (policy 'sites: [b]' of its type), not a")
    lab.move("b", "n", "abcd")
    lab.run()
    assert lab.at("a", "n").history.site_list == ("a", "b", "c", "d")


def test_without_a_policy_all_is_open() -> None:
    lab = lab_with(None)
    lab.move("b", "n", "abcd")
    lab.submit("c", "n", "set 3", matrix=OTHER_RULES)
    lab.run()
    assert lab.states("n", "abcd") == [3] * 4


# -- on receipt ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("site", "changes", "reason"),
    [
        (
            "b",
            {"kind": Kind.SITES, "sites": ("a", "b", "c", "d")},
            "only a, which made it, may change its list",
        ),
        ("b", {"sites": ("a", "b", "c", "d")}, "only a, which made it, may change its list"),
        ("d", {}, "only a, b and c may operate on it (policy 'operate: involved' of its type), not d"),
        ("d", {"kind": Kind.DELETE}, "only a, b and c may operate on it"),
        ("d", {"kind": Kind.SEAL}, "only a, b and c may operate on it"),
        ("d", {"deps": {}, "sites": ("a", "b", "c", "d")}, "another resource of this name is at a, b and c"),
        ("d", {"deps": {}}, "d is not one of the sites of this resource"),
        ("d", {"deps": {Origin("a", "x"): 0}, "sites": None}, "d is not one of the sites"),
        ("b", {"rtype": "lax"}, "it is of type 'lax', and the resource is of type 'n'"),
    ],
    ids=range(9),
)
def test_what_a_site_may_not_say_is_dropped(site: str, changes: dict[str, Any], reason: str) -> None:
    lab = lab_with(Policy())
    lab.settings.types["lax"] = replace(lab.settings.types["n"], policy=INVOLVED)
    before = {name: known(lab, name) for name in "abc"}
    origin = Origin(site, "x") if site == "d" else lab.at(site, "n").origin
    past = dict(lab.at("a", "n").history.known)
    op = made(lab, site, **{"origin": origin, "deps": past, "stamp": Stamp(lab.now_ms + 1, 0, origin), **changes})
    if site == "d" and "matrix" not in changes:
        op = structs.replace(op, matrix=lab.at("a", "n").history.adopted)
    for name in "ac":
        replica = hand(lab, name, site, op)
        assert replica.inbox.refused[op.id].startswith(reason)
        assert op.id not in replica.history.ops
        assert replica.history.known.get(origin, 0) < op.seq  # nobody is told that we have it
    lab.run()
    assert known(lab, "a") == before["a"]
    assert known(lab, "c") == before["c"]
    lab.submit("c", "n", "inc 1")  # and all goes on
    lab.run()
    assert lab.states("n", "ac") == [11, 11]


def test_a_matrix_that_nobody_brought_is_not_believed() -> None:
    """Nor one that is said to have come from the one who may."""
    lab = lab_with(Policy())
    creator = lab.at("a", "n").origin
    op = made(lab, "b", matrix=MatrixRef(OTHER_RULES.hash, Stamp(lab.now_ms + 50_000, 0, creator)))
    hand(lab, "c", "b", op)
    assert told(lab, "it names a matrix that was introduced after it")
    op = made(lab, "b", matrix=MatrixRef(OTHER_RULES.hash, Stamp(1, 0, creator)))
    assert hand(lab, "c", "b", op).inbox.refused[op.id] == "it names a matrix that no operation before it introduced"
    stamp = Stamp(lab.now_ms + 1_000, 0, lab.at("b", "n").origin)
    op = made(lab, "b", matrix=MatrixRef(OTHER_RULES.hash, stamp), stamp=stamp)
    assert "may change its matrix" in hand(lab, "c", "b", op).inbox.refused[op.id]
    assert lab.at("c", "n").matrix.hash == COUNTER.matrix.hash


def test_stamps_of_one_site_go_forward() -> None:
    lab = lab_with(Policy())
    lab.submit("b", "n", "inc 1")
    lab.run()
    last = lab.at("b", "n").history.ops[OpId(lab.at("b", "n").origin, 1)]
    op = made(lab, "b", stamp=last.stamp)
    assert "stamped earlier than b:1" in hand(lab, "a", "b", op).inbox.refused[op.id]


def test_what_was_made_in_knowledge_of_it_waits_and_says_for_what() -> None:
    """Another site took it, since its configuration is another one."""
    lab = lab_with(Policy())
    bad = made(lab, "b", kind=Kind.SITES, sites=("a", "b", "c", "d"))
    later = made(lab, "b", seq=2, deps={**bad.deps, bad.origin: 1}, stamp=Stamp(bad.stamp.time_ms + 1, 0, bad.origin))
    replica = hand(lab, "c", "b", bad, later)
    assert waiting_for_refused(replica) == {bad.id: [later.id]}
    assert len(told(lab, "refused", str(bad.id))) == 1
    hand(lab, "c", "b", bad, later)
    assert len(told(lab, "refused", str(bad.id))) == 1  # told once, however often it comes


def test_two_sites_of_one_list_may_make_it_at_once() -> None:
    lab = Lab("abc")
    lab.make("n", COUNTER, "abc", policy=Policy())
    lab.partition("a", "bc")
    lab.submit("a", "n", "set 1")
    lab.submit("b", "n", "set 2")
    lab.run()
    lab.heal()
    lab.run()
    assert lab.states("n", "abc") == [2, 2, 2]
    assert not any(lab.at(site, "n").inbox.refused for site in "abc")


def test_a_site_that_was_removed_without_knowing_is_still_heard() -> None:
    lab = lab_with(Policy())
    lab.partition("c", "ab")
    lab.move("a", "n", "ab")
    lab.submit("c", "n", "inc 7")
    lab.run()
    lab.heal()
    lab.run()
    assert lab.states("n", "ab") == [17, 17]


def test_who_came_later_takes_the_word_of_others_for_lists_that_are_forgotten() -> None:
    lab = lab_with(Policy())
    history = lab.at("b", "n").history
    history.floor = {Origin("z", "z1"): 1}  # whose list named d, and is forgotten here
    op = made(lab, "d", deps=dict(history.floor), matrix=history.adopted, verdict=Verdict.VOID)
    assert "only a, b and c may operate on it" in (operation_violation(op, Policy(), history) or "")
    assert operation_violation(op, Policy(), history, endorsed=True) is None
    assert operation_violation(op, Policy(operate=("a",)), history, endorsed=True)


def test_strangers_cannot_fill_the_queue() -> None:
    lab = Lab("abcd", waiting=200)
    lab.make("n", COUNTER, "abc", policy=Policy())
    lab.submit("a", "n", "set 10")
    lab.run()
    never = {Origin("x", "x"): 9}
    origin = Origin("d", "x")

    def nth(n: int) -> Operation:
        deps = {**never, origin: n - 1} if n > 1 else never
        return made(lab, "d", origin=origin, seq=n, deps=deps, stamp=Stamp(lab.now_ms + 2_000, n, origin))

    flood = [nth(n) for n in range(1, 200)]
    assert len(hand(lab, "b", "d", *flood).inbox.waiting) == 2
    lab.submit("a", "n", "inc 1")
    lab.run()
    assert lab.states("n", "abc") == [11] * 3


def test_replies_of_strangers_are_not_kept() -> None:
    lab = lab_with(Policy())
    op = next(iter(lab.at("a", "n").history.ops.values()))
    false = Reply("n", Origin("d", "x"), 1, op.id, op.key, Status.KO, detail="lies")
    replica = hand(lab, "b", "d", replies=(false,), replies_after={false.origin: 0})
    assert false.origin not in replica.replies.known


def snapshot_of(lab: Lab, **changes: Any) -> dict[str, Any]:
    """All is forgotten, says the sender; the state is 666."""
    history = lab.at("a", "n").history
    floor = {**history.known, Origin("y", "y"): 2}
    parts = Snapshot(floor, {}, Base(floor, Command("set 666")), history.adopted, ())
    return {"snapshot": structs.replace(parts, **changes)}


def test_what_is_left_is_believed_of_sites_of_the_resource_only() -> None:
    lab = lab_with(Policy())
    stamp = Stamp(lab.now_ms, 0, Origin("y", "y"))
    origins = (*(Origin(site, "1") for site in "abc"), stamp.origin)
    stable = {stamp.origin: 1}  # which is forgotten
    stated = seal_hash(stable, origins, stamp)
    statements = tuple(Statement("n", origin, stated, 0) for origin in origins[:-1])
    seal = Seal(stable, stamp, origins, statements)
    deps = {**lab.at("a", "n").history.known, **stable}
    sealing = made(lab, "a", origin=stamp.origin, seq=2, deps=deps, stamp=stamp, kind=Kind.SEAL, seal=seal)
    ops = (*lab.at("a", "n").history.ops.values(), sealing)
    hand(lab, "b", "d", *ops, **snapshot_of(lab))
    assert told(lab, "d sent a snapshot of this resource")
    lab.run()
    assert lab.states("n", "abc") == [10, 10, 10]
    stranger = MatrixRef(OTHER_RULES.hash, Stamp(2_000_000, 0, Origin("c", "x")))
    hand(lab, "b", "c", *ops, **snapshot_of(lab, adopted=stranger))
    assert lab.at("b", "n").matrix.hash == COUNTER.matrix.hash
    hand(lab, "b", "c", *ops, **snapshot_of(lab))
    assert Origin("y", "y") in lab.at("b", "n").history.known


# -- honest sites ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("profile", ["moving", "hostile", "rules"])
def test_honest_sites_never_fall_apart_over_a_policy(profile: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whole histories with cuts, crashes, lists and matrices that change: what one takes, all take in the end;
    but for two who chose one name for two resources without having to do with each other."""
    of_type, clashes, judged = apps.with_early_checkpoints, [], []
    true_admits = admission.admits

    def admits(replica: Replica, op: Operation, out: Any) -> bool:
        taken = true_admits(replica, op, out)
        judged.append(op)
        if not taken and "another resource of this name" in replica.inbox.refused[op.id]:
            clashes.append(op.resource)
        return taken

    monkeypatch.setattr(world, "with_early_checkpoints", lambda type_: replace(of_type(type_), policy=INVOLVED))
    monkeypatch.setattr(admission, "admits", admits)
    for seed in range(8):  # `make soak` plays 2,000 histories of the profile `policed`
        clashes.clear()
        problems = [
            problem
            for problem in play(seed, 4, PROFILES[profile]).problems
            if not any(problem.startswith(f"{name}:") for name in clashes)
        ]
        assert not problems, f"seed {seed}"
    assert len(judged) > 300  # so that it is not for lack of operations


# -- in the file -----------------------------------------------------------------------------------------


def test_a_policy_counts_where_sites_have_identities(tmp_path: Any) -> None:
    text = "site: a\n{}\nservices: {{image: {{url: 'http://127.0.0.1:1'}}}}\ntypes: {{t: {{policy: {{sites: involved}}}}}}\n"
    secure = parse_site(text.format("security: {folder: tls}"), tmp_path / "site.yaml").engine
    assert secure.policy_of("t") == Policy(SiteGroup.INVOLVED, SiteGroup.CREATOR, SiteGroup.INVOLVED)
    assert secure.policy_of("http:image") == Policy(SiteGroup.INVOLVED, SiteGroup.CREATOR, SiteGroup.MESH)
    assert secure.policy_of("unheard-of") == Policy(SiteGroup.MESH, SiteGroup.MESH, SiteGroup.MESH)
    plain = parse_site(text.format("security: none"), tmp_path / "site.yaml").engine
    assert [plain.policy_of(name) for name in ("t", "http:image", "unheard-of")] == [None] * 3


@pytest.mark.parametrize(
    ("policy", "complaint"),
    [
        (
            "{sites: anyone}",
            "expected creator, involved, mesh, or a list of sites such as [site1, site2], found 'anyone'",
        ),
        ("{operate: creator}", "expected involved, mesh, or a list"),
        ("{operate: ['']}", "operate[0]"),
        ("{site: [a]}", "unknown key; did you mean 'sites'?"),
        ("creator", "expected names with values"),
    ],
)
def test_a_mistake_in_a_policy_is_told(tmp_path: Any, policy: str, complaint: str) -> None:
    with pytest.raises(YamlFileError) as caught:
        parse_site(f"site: a\ntypes: {{t: {{policy: {policy}}}}}\n", tmp_path / "site.yaml")
    assert complaint in str(caught.value)

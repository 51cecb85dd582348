"""The report's experiments for real: three agents on three hosts, links cut and restored, Redis and files."""

from tests.agent.rig import Line, MakeRig, Rig, until
from tests.agent.types import FILE, REDIS
from tests.wan import Wan
from tests.wan.fixtures import MakeWan

SITES = ("site1", "site2", "site3")
Step = tuple[str, str, str]  # at which site, of which type, which command


def _redis(rig: Rig) -> None:
    for site in SITES:
        rig.start_beside(site, ["redis-server", "--port", "6379", "--save", "", "--dir", str(rig.folder(site))])
    rig.start()
    until(lambda: _ok(rig.exec("site1", "counter", "set", "redis-cli -e set counter 0")), "for Redis")


def _ok(lines: list[Line]) -> bool:
    return [line["Status"] for line in lines] == ["OK"] * len(SITES)


def _states(rig: Rig, id_: str) -> set[str]:
    return {shown["Output"].strip() for shown in rig.show("site2", id_).values()}


def _all_have(rig: Rig, id_: str, expected: str) -> None:
    until(lambda: _states(rig, id_) == {expected}, f"for {expected!r} everywhere, have {_states(rig, id_)}")


def _in_order(rig: Rig, id_: str, steps: list[Step]) -> None:
    for site, type_, command in steps:
        assert _ok(rig.exec(site, id_, type_, command)), command


def _while_cut(rig: Rig, id_: str, steps: list[Step]) -> list[Line]:
    assert rig.wan
    rig.wan.partition(*([site] for site in SITES))
    answers = [rig.exec_here(site, id_, type_, command) for site, type_, command in steps]
    rig.wan.heal()
    return answers


REDIS_STEPS: list[Step] = [
    ("site1", "set", "redis-cli -e set counter 29"),
    ("site2", "inc", "redis-cli -e incrby counter 13"),
    ("site3", "inc", "redis-cli -e incrby counter -12"),
]
FAILING_REDIS: Step = ("site3", "inc", "redis-cli -e sadd counter x")
FILE_STEPS: list[Step] = [
    ("site1", "add", "echo left >> file"),
    ("site2", "set", "echo middle > file"),
    ("site3", "add", "echo right >> file"),
]
FAILING_FILE: Step = ("site3", "add", "echo right >> file/subfile")


def redis_in_order(rig: Rig) -> None:
    _in_order(rig, "counter", REDIS_STEPS)
    _all_have(rig, "counter", "30")


def redis_cut(rig: Rig) -> None:
    assert {line["Status"] for line in _while_cut(rig, "counter", REDIS_STEPS)} == {"OK"}
    _all_have(rig, "counter", "29")


def redis_failing(rig: Rig) -> None:
    answers = _while_cut(rig, "counter", [*REDIS_STEPS[:2], FAILING_REDIS])
    assert [line["Status"] for line in answers] == ["OK", "OK", "KO"]
    assert "WRONGTYPE" in answers[2]["Output"]
    _all_have(rig, "counter", "29")


def files_in_order(rig: Rig) -> None:
    _in_order(rig, "file", FILE_STEPS)
    _all_have(rig, "file", "middle\nright")


def files_cut(rig: Rig) -> None:
    assert {line["Status"] for line in _while_cut(rig, "file", FILE_STEPS)} == {"OK"}
    _all_have(rig, "file", "middle")


def files_failing(rig: Rig) -> None:
    answers = _while_cut(rig, "file", [*FILE_STEPS[:2], FAILING_FILE])
    assert [line["Status"] for line in answers] == ["OK", "OK", "KO"]
    _all_have(rig, "file", "middle")


def again(rig: Rig, id_: str, type_: str, command: str, empty: str) -> None:
    """Begin anew with the same resource: a forced operation replaces everything."""
    lines = rig.exec("site1", id_, type_, command, force="true")
    assert _ok(lines), lines
    _all_have(rig, id_, empty)


def test_redis(make_rig: MakeRig, wan: Wan, repetitions: int) -> None:
    rig = make_rig({"redis": REDIS}, wan=wan)
    _redis(rig)
    for experiment in (redis_in_order, redis_cut, redis_failing) * repetitions:
        experiment(rig)
        again(rig, "counter", "set", "redis-cli -e set counter 0", "0")


def test_files(make_rig: MakeRig, wan: Wan, repetitions: int) -> None:
    rig = make_rig({"file": FILE}, wan=wan)
    rig.start()
    assert _ok(rig.exec("site1", "file", "set", "echo init > file"))
    for experiment in (files_in_order, files_cut, files_failing) * repetitions:
        experiment(rig)
        again(rig, "file", "set", "echo init > file", "init")


def test_two_appends_while_cut_stand_in_the_same_order_everywhere(make_rig: MakeRig, make_wan: MakeWan) -> None:
    wan = make_wan("site1", "site2")
    rig = make_rig({"file": FILE}, "site1", "site2", wan=wan)
    rig.start()
    rig.exec("site1", "notes", "add", "echo first >> notes")
    wan.cut("site1", "site2")
    rig.exec_here("site1", "notes", "add", "echo of-site1 >> notes")
    rig.exec_here("site2", "notes", "add", "echo of-site2 >> notes")
    wan.heal()

    def states() -> set[str]:
        return {shown["Output"] for shown in rig.show("site1", "notes").values()}

    until(lambda: len(states()) == 1 and next(iter(states())).count("\n") == 3, f"have {states()}")
    assert sorted(next(iter(states())).split()) == ["first", "of-site1", "of-site2"]

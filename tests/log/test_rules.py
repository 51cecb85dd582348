"""Each rule of the merge in one small example."""

from cheops.log.causality import Clock
from cheops.log.history import History
from cheops.log.matrix import Entry, Matrix, Result
from cheops.log.operation import Applied, Command, Kind, MatrixRef, Operation, OpId, Origin, Stamp, Verdict
from cheops.log.plan import Plan, plan
from cheops.log.rules import Fate, Rule, merged, rule_text

COUNTER = Matrix(
    (
        Entry("set", "inc", Result.KEEP_ORDER),
        Entry("inc", "inc", Result.TAKE_BOTH),
        Entry("set", "set", Result.TAKE_ONE),
    )
)
FILE = Matrix((Entry("set", "add", Result.KEEP_ORDER), Entry("set", "set", Result.TAKE_ONE)))


class Sites:
    """Makes operations as sites would: each knows what it made and what it was told."""

    def __init__(self, matrix: Matrix) -> None:
        self.ref = MatrixRef(matrix.hash, Stamp(0, 0, Origin("", "")))
        self.known: dict[str, list[Operation]] = {}
        self.time_ms = 0

    def make(
        self,
        site: str,
        type_: str,
        line: str = "",
        *,
        kind: Kind = Kind.NORMAL,
        verdict: Verdict = Verdict.OK,
    ) -> Operation:
        origin, known = Origin(site, "1"), self.known.setdefault(site, [])
        deps: dict[Origin, int] = {}
        clock = Clock()
        for op in known:
            deps[op.origin] = max(op.seq, deps.get(op.origin, 0))
            clock = clock.seen(op.stamp)
        self.time_ms += 1
        stamp = clock.tick(self.time_ms).stamp(origin)
        op = Operation(
            "r",
            "",
            type_,
            kind,
            Command(line),
            origin,
            deps.get(origin, 0) + 1,
            deps,
            stamp,
            self.ref,
            verdict=verdict,
        )
        known.append(op)
        return op

    def tell(self, site: str, *ops: Operation) -> None:
        self.known.setdefault(site, []).extend(ops)


def ids(ops: tuple[Operation, ...]) -> list[OpId]:
    return [op.id for op in ops]


def test_rule_1_what_failed_at_its_origin_has_no_effect_and_supersedes_nothing() -> None:
    sites = Sites(COUNTER)
    inc = sites.make("a", "inc")
    failed = sites.make("a", "set", verdict=Verdict.VOID)
    result = merged([inc, failed], COUNTER)
    assert result.effective == (inc,)
    assert result.fates == {failed.id: Fate(Rule.VOID)}


def test_rule_2_what_is_superseded_supersedes_nothing() -> None:
    """b's set loses to a's; b's later increment is not a's victim, and was never its own set's."""
    matrix = Matrix((Entry("wipe", "set", Result.KEEP_ORDER), Entry("set", "add", Result.KEEP_ORDER)))
    sites = Sites(matrix)
    wipe = sites.make("a", "wipe")
    sites.tell("c", wipe)
    add = sites.make("c", "add")  # in knowledge of the wipe, concurrent to the set
    loser = sites.make("b", "set")  # concurrent to the wipe, which beats it
    result = merged([wipe, add, loser], matrix)
    assert set(ids(result.effective)) == {wipe.id, add.id}
    assert result.fates == {loser.id: Fate(Rule.REPLACE_WINS_OVER_CONCURRENT, wipe.id)}


def test_rule_2_what_was_superseded_does_not_come_back_with_its_superseder_beaten() -> None:
    """b's set replaces a's increment. c's set, which would let the increment stay, then beats b's."""
    matrix = Matrix((Entry("set", "inc", Result.KEEP_ORDER, concurrent_both=True), *COUNTER.entries[1:]))
    sites = Sites(matrix)
    inc = sites.make("a", "inc")
    sites.tell("b", inc)
    later, last = sites.make("b", "set"), sites.make("c", "set")
    assert merged([inc, later], matrix).effective == (later,)
    result = merged([inc, later, last], matrix)
    assert result.effective == (last,)
    assert result.fates[inc.id] == Fate(Rule.LATER_REPLACES_EARLIER, later.id)
    assert merged([inc, last], matrix).effective == (last, inc), "nobody who knew of it has replaced it"


def test_rule_3_later_replaces_earlier() -> None:
    sites = Sites(COUNTER)
    inc, later = sites.make("a", "inc"), sites.make("a", "set")
    assert merged([inc, later], COUNTER).fates == {inc.id: Fate(Rule.LATER_REPLACES_EARLIER, later.id)}


def test_rule_4_replace_wins_over_concurrent() -> None:
    """The report's experiment: set 29, inc 13 and inc -12 at three sites give 29."""
    sites = Sites(COUNTER)
    start = sites.make("a", "set", "0")
    for site in "bc":
        sites.tell(site, start)
    ops = [sites.make("a", "set", "29"), sites.make("b", "inc", "13"), sites.make("c", "inc", "-12")]
    result = merged([start, *ops], COUNTER)
    assert [op.payload.line for op in result.effective] == ["29"]
    assert result.fates[ops[1].id] == result.fates[ops[2].id] == Fate(Rule.REPLACE_WINS_OVER_CONCURRENT, ops[0].id)


def test_rule_4_unless_the_entry_says_that_both_stay() -> None:
    entries = (Entry("set", "inc", Result.KEEP_ORDER, concurrent_both=True), *COUNTER.entries[1:])
    matrix = Matrix(entries)
    sites = Sites(matrix)
    inc, set_ = sites.make("a", "inc"), sites.make("b", "set")
    assert merged([inc, set_], matrix).effective == (set_, inc), "the one that replaces comes first"


def test_rule_5_of_two_that_replace_each_other_the_last_writer_stays() -> None:
    sites = Sites(COUNTER)
    first, second = sites.make("a", "set"), sites.make("b", "set")
    assert merged([first, second], COUNTER).fates == {first.id: Fate(Rule.LAST_WRITER, second.id)}


def test_rule_6_what_is_left_has_one_order_that_extends_causality() -> None:
    sites = Sites(FILE)
    one, two = sites.make("a", "add"), sites.make("b", "add")
    sites.tell("a", two)
    three = sites.make("a", "add")
    for ops in ([one, two, three], [three, one, two], [two, three, one]):
        assert merged(ops, FILE).effective == (one, two, three)


def test_rule_7_undefined_pairs_are_ordered() -> None:
    """A late append goes between two others by a replay, not to the end."""
    sites = Sites(FILE)
    base, late, last = sites.make("a", "set"), sites.make("a", "add"), sites.make("b", "add")
    applied = [Applied(op.id, op.type) for op in (base, last)]
    assert plan(applied, [base, late, last], FILE) == Plan((base, late, last), replay=True)
    both = Matrix((*FILE.entries, Entry("add", "add", Result.TAKE_BOTH)))
    assert plan(applied, [base, late, last], both) == Plan((late,)), "take-both: it is simply run"


def test_rule_8_every_operation_is_effective_or_has_a_fate() -> None:
    sites = Sites(COUNTER)
    ops = [
        sites.make("a", "set"),
        sites.make("a", "inc"),
        sites.make("b", "inc", verdict=Verdict.VOID),
        sites.make("b", "inc", verdict=Verdict.SUPERSEDED),
        sites.make("b", "", kind=Kind.DELETE),
    ]
    history = History(lambda _hash: COUNTER)
    for op in ops:
        history.add(op)
    assert {op.id for op in history.effective} | history.fates.keys() == {op.id for op in ops}
    assert {fate.rule for fate in history.fates.values()} == {
        Rule.REPLACE_WINS_OVER_CONCURRENT,
        Rule.VOID,
        Rule.BEATEN_AT_ORIGIN,
    }


def test_only_the_eight_rules_are_shown_with_a_number() -> None:
    shown = {rule: rule_text(rule, "so") for rule in Rule}
    assert shown[Rule.LAST_WRITER] == "so (rule 5)"
    assert {shown[rule] for rule in (Rule.BEATEN_AT_ORIGIN, Rule.FOLDED, Rule.ORPHANED)} == {"so"}
    assert rule_text(11, "so") == "so"  # from an agent of a later version


def test_delete_and_force_replace_everything_and_each_other() -> None:
    sites = Sites(COUNTER)
    set_, delete, force = (
        sites.make(s, "set", kind=k) for s, k in (("a", Kind.NORMAL), ("b", Kind.DELETE), ("c", Kind.FORCE))
    )
    assert merged([set_, delete], COUNTER).effective == (delete,)
    assert merged([set_, delete, force], COUNTER).effective == (force,)

"""What people see, drawn from answers made by hand; and which exit code an answer is."""

import io
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from rich.console import Console

from cheops.api.models.operations import (
    Accepted,
    DryRun,
    Effect,
    Lane,
    LogView,
    Mark,
    OperationView,
    ReplyView,
    SiteAnswer,
    StateAt,
    Verification,
    WouldSupersede,
)
from cheops.api.models.resources import (
    ResourceStatus,
    SiteHealth,
    SiteStatus,
    SpaceUse,
    StateCounts,
    Trouble,
    WorstResource,
)
from cheops.api.models.site import Check, Checks, Level
from cheops.cli.exec import (
    ConnectionLostError,
    Follower,
    draw_accepted,
    draw_dry_run,
    exit_code,
    named_sites,
    reply_line,
)
from cheops.cli.history import draw_log, event_line
from cheops.cli.options import Waiting
from cheops.cli.output import age, short_time
from cheops.cli.resources import draw_open
from cheops.cli.status import (
    draw_checks,
    draw_health,
    draw_status,
    draw_verification,
    health_exit_code,
    verify_exit_code,
)
from cheops.log.operation import Kind, Status, Verdict
from cheops.notify.event import Event, SiteResult


def drawn(draw: Callable[..., None], *given: Any, **more: Any) -> list[str]:
    out = Console(file=io.StringIO(), width=500, highlight=False, markup=False)
    draw(out, *given, **more)
    assert isinstance(out.file, io.StringIO)
    return [line.rstrip() for line in out.file.getvalue().splitlines()]


# -- answers to an operation -----------------------------------------------------------------------------


def answer(site: str, status: Status = Status.OK, output: str = "", detail: str = "") -> SiteAnswer:
    return SiteAnswer(
        operation="site1:3", site=site, status=status, detail=detail, output=output, at=None, took_ms=None
    )


def accepted(*answers: SiteAnswer, waiting_for: tuple[str, ...] = (), **more: Any) -> Accepted:
    given: dict[str, Any] = {"verdict": Verdict.OK, "satisfied": not waiting_for, **more}
    sites = (*(one.site for one in answers), *waiting_for)
    return Accepted(operation="site1:3", resource="n", sites=sites, answers=answers, waiting_for=waiting_for, **given)


@pytest.mark.parametrize(
    ("found", "code"),
    [
        (accepted(answer("site1"), answer("site2")), 0),
        (accepted(answer("site1"), waiting_for=("site2",), satisfied=True), 0),
        (accepted(answer("site1"), waiting_for=("site2",)), 3),
        (accepted(answer("site1"), answer("site2", Status.KO)), 1),
        (accepted(answer("site1", Status.UNKNOWN), waiting_for=("site2",)), 1),
        (accepted(answer("site1", Status.KO), verdict=Verdict.VOID), 1),
        (accepted(answer("site1", Status.SUPERSEDED), verdict=Verdict.SUPERSEDED), 0),
    ],
)
def test_the_exit_code_of_an_operation(found: Accepted, code: int) -> None:
    assert exit_code(found) == code


@pytest.mark.parametrize(
    ("given", "line"),
    [
        (answer("site1", output="hello\n"), "OK      site1  hello"),
        (answer("site1", output="a\nb\n"), "OK      site1\n        a\n        b"),
        (answer("site2", Status.KO, detail="exit code 7"), "KO      site2  exit code 7"),
        (answer("site2", Status.PENDING), "TIMEOUT site2"),
        (answer("site2", Status.SUPERSEDED), "SUPERSEDED site2"),
        (answer("site1", output="\x1b[31mred"), "OK      site1  \N{REPLACEMENT CHARACTER}[31mred"),
    ],
)
def test_the_line_of_an_answer(given: SiteAnswer, line: str) -> None:
    assert reply_line(given).plain == line


def test_after_a_timeout_one_hears_who_is_to_come_and_how_to_follow_up() -> None:
    found = accepted(answer("site1"), waiting_for=("site2", "site3"))
    out = drawn(lambda out: draw_accepted(out, out, found, 0.5))
    assert out[1:4] == ["OK      site1", "PENDING site2", "PENDING site3"]
    assert (
        out[4] == "no reply from site2 and site3 within 0.5 s. site1:3 is saved; delivery continues in the background."
    )
    assert "cheops describe operation n site1:3" in out[5]
    assert "cheops wait n --for=converged" in out[6]


def followed(*answers: SiteAnswer, named: tuple[str, ...] = (), wait: Waiting = Waiting.ALL) -> Accepted:
    with Follower(Console(file=io.StringIO()), {}, (), wait) as follower:
        for one in answers:
            follower.take(one)
    return follower.accepted("n", named)


@pytest.mark.parametrize(
    ("wait", "answered", "satisfied"),
    [
        (Waiting.ALL, 2, False),
        (Waiting.ALL, 3, True),
        (Waiting.QUORUM, 1, False),
        (Waiting.QUORUM, 2, True),
        (Waiting.FIRST, 1, True),
        (Waiting.NONE, 0, True),
    ],
)
def test_a_stream_of_answers_is_enough_or_not(wait: Waiting, answered: int, satisfied: bool) -> None:
    states = [Status.OK] * answered + [Status.PENDING] * (3 - answered)
    found = followed(*(answer(f"site{n}", status) for n, status in enumerate(states)), wait=wait)
    assert found.satisfied is satisfied
    assert len(found.waiting_for) == 3 - answered


def test_an_answer_that_breaks_off_is_not_taken_for_a_whole_one() -> None:
    with pytest.raises(ConnectionLostError):
        followed()
    with pytest.raises(ConnectionLostError, match="cheops log n"):
        followed(answer("site1"), named=("site1", "site2"))
    void = followed(answer("site1", Status.KO), named=("site1", "site2"))
    assert void.verdict is Verdict.VOID


@pytest.mark.parametrize(
    ("text", "names"),
    [("a", ("a",)), ("a & DC 1", ("a", "DC 1")), ("a ; b", ()), ("around(a, 10ms)", ()), ("", ())],
)
def test_sites_are_named_where_no_scope_needs_to_be_resolved(text: str, names: tuple[str, ...]) -> None:
    assert named_sites(text) == names


# -- the state of a resource -----------------------------------------------------------------------------


def site_status(site: str, **more: Any) -> SiteStatus:
    usual: dict[str, Any] = {
        "reachable": True, "as_of_s": 0.0, "digest": "9b1f", "pending": 0, "failed": (), "unknown": ()
    }  # fmt: skip
    return SiteStatus(site=site, **(usual | more))


def resource_status(overall: Any, *sites: SiteStatus, order_not_enforced: bool = False) -> ResourceStatus:
    cut = tuple(site.site for site in sites if not site.reachable)
    return ResourceStatus(
        id="n",
        overall=overall,
        sentence="a sentence",
        unreachable=cut,
        order_not_enforced=order_not_enforced,
        sites=sites,
    )


FAILED = (Trouble(operation="site1:3", detail="exit code 1"),)


def test_status_says_who_lacks_what() -> None:
    found = resource_status(
        "DIVERGED",
        site_status("site1"),
        site_status("site2", failed=FAILED),
        site_status("site3", reachable=False, as_of_s=12.3, pending=2),
    )
    out = drawn(draw_status, found)
    assert out[0] == "DIVERGED  n: a sentence"
    assert out[4].split() == ["site2", "yes", "now", "0", "site1:3", "-"]
    assert out[5].split() == ["site3", "no", "12", "s", "ago", "2", "-", "-"]
    assert "site2 site1:3: exit code 1" in out
    assert out[-1] == "reason: cheops explain n   how to fix it: cheops repair n"
    assert "DIGEST" in drawn(draw_status, found, wide=True)[2]


SPACE = SpaceUse(
    total=5_500_000,
    live=2_000_000,
    dead=9_000,
    free=512,
    wal=1_000_000,
    files=0,
    journal=2_000_000,
    replicas=90_000,
    audit=400_000,
    documents=1_200,
    deleted=3,
)


def site_health(unreachable: tuple[str, ...] = (), **counts: int) -> SiteHealth:
    names = ("converged", "converging", "diverged", "order_not_enforced", "unknown")
    states = StateCounts(**{name: counts.get(name, 0) for name in names})
    worst = WorstResource(id="n", state="diverged", overall="DIVERGED", sentence="a sentence", hint="cheops repair n")
    return SiteHealth(
        site="site1",
        resources=sum(counts.values()),
        states=states,
        unreachable=unreachable,
        worst=(worst,) if states.diverged else (),
        space=SPACE,
    )


def test_the_status_of_a_site_counts_its_resources_and_shows_the_worst() -> None:
    out = drawn(draw_health, site_health(("site3",), converged=99_998, diverged=1, unknown=1))
    assert out[0] == "site1: 100,000 resources"
    assert [line.split(maxsplit=2)[:2] for line in out[3:6]] == [
        ["converged", "99,998"],
        ["diverged", "1"],
        ["unknown", "1"],
    ]
    assert "unreachable now: site3; what is shown there is what was last reported" in out
    assert (
        "disk: 5.2 MiB: store 1.9 MiB live in 1,200 documents, 8.8 KiB in 3 tombstones, 512 B free, log 977 KiB, "
        "journal 1.9 MiB, replicas 88 KiB, audit log 391 KiB"
    ) in out
    assert out[-2:] == ["DIVERGED  n: a sentence", "  cheops repair n"]


@pytest.mark.parametrize(
    ("health", "code"),
    [
        (site_health(), 0),
        (site_health(converged=3), 0),
        (site_health(converged=3, converging=1), 3),
        (site_health(converged=3, unknown=1), 3),
        (site_health(("site2",), converged=3), 3),
        (site_health(converged=3, order_not_enforced=1), 1),
        (site_health(converging=3, diverged=1), 1),
    ],
)
def test_the_exit_code_of_the_status_of_a_site(health: SiteHealth, code: int) -> None:
    assert health_exit_code(health) == code


def test_status_has_no_number_for_what_is_not_known() -> None:
    out = drawn(draw_status, resource_status("UNREACHABLE", site_status("site3", as_of_s=None, pending=None)))
    assert out[3].split() == ["site3", "yes", "never", "not", "known", "-", "-"]


def test_resolve_lists_what_is_open_with_the_command_that_closes_it() -> None:
    unknown = resource_status("DIVERGED", site_status("site1", unknown=FAILED), site_status("site2"))
    assert "cheops resolve n --site site1 --op site1:3 --happened yes|no" in drawn(draw_open, unknown)[1]
    failed = resource_status("DIVERGED", site_status("site1"), site_status("site2", failed=FAILED))
    out = drawn(draw_open, failed)
    assert out[0] == "DIVERGED  site1:3 at site2: exit code 1"
    assert out[1] == "  make the sites equal again: cheops repair n"
    order = resource_status("DIVERGED", site_status("site1"), order_not_enforced=True)
    assert "cheops repair n" in drawn(draw_open, order)[0]
    assert "nothing to resolve" in drawn(draw_open, resource_status("CONVERGED"))[0]


def verification(*states: tuple[str, str, str], same: bool = False, **diff: tuple[str, ...]) -> Verification:
    found = tuple(StateAt(site=site, status=status, output=output) for site, status, output in states)
    return Verification(resource="n", same=same, states=found, diff=diff)


def test_verify_shows_how_the_sites_differ() -> None:
    diff = ("--- site1", "+++ site2", "@@ -1 +1 @@", "-one", "+two")
    found = verification(("site1", "OK", "one\n"), ("site2", "OK", "two\n"), site2=diff)
    out = drawn(draw_verification, found)
    assert out[2].split() == ["site2", "OK", "two"]
    assert out[out.index("differences of site2 from site1:") + 1 :][:5] == list(diff)
    assert out[-2] == "the sites differ; reason: cheops explain n"
    assert out[-1].endswith("To make the sites equal again: cheops repair n")


def test_verify_does_not_say_that_sites_differ_if_none_could_be_read() -> None:
    found = verification(("site1", "KO", "the service answers 404: no"), ("site2", "KO", "the service answers 404: no"))
    assert drawn(draw_verification, found)[-1].startswith("the state of no site could be read, so nothing was compared")
    one = verification(("site1", "OK", "1"), ("site2", "KO", "the service answers 404: no"))
    assert "the sites differ" in drawn(draw_verification, one)[-2]


@pytest.mark.parametrize(
    ("found", "code"),
    [
        (verification(("a", "OK", "1"), ("b", "OK", "1"), same=True), 0),
        (verification(("a", "OK", "1"), ("b", "OK", "2")), 1),
        (verification(("a", "OK", "1"), ("b", "KO", "1")), 1),
        (verification(("a", "OK", "1"), ("b", "TIMEOUT", "")), 3),
        (verification(("a", "OK", "1"), ("b", "OK", "2"), ("c", "TIMEOUT", "")), 1),
    ],
)
def test_the_exit_code_of_a_comparison(found: Verification, code: int) -> None:
    assert verify_exit_code(found) == code


# -- the log ---------------------------------------------------------------------------------------------


def operation(id_: str, statuses: dict[str, tuple[Status, bool]], **more: Any) -> OperationView:
    replies = tuple(
        ReplyView(
            site=site,
            status=status,
            detail="",
            output="",
            at="2026-11-16T01:41:31.885Z" if ran else None,
            took_ms=None,
            replayed=False,
        )
        for site, (status, ran) in statuses.items()
    )
    usual: dict[str, Any] = {
        "type": "set", "kind": Kind.NORMAL, "command": "set 1", "verdict": Verdict.OK, "why": "",
        "effect": Effect.EFFECTIVE, "rule": None, "sentence": "", "beaten_by": None,
    }  # fmt: skip
    return OperationView(
        id=id_,
        resource="n",
        origin=id_.split(":", maxsplit=1)[0],
        incarnation="i",
        seq=1,
        files={},
        made_at="2026-11-16T01:41:31.885Z",
        knows={},
        matrix="m",
        sites=None,
        replies=replies,
        **(usual | more),
    )


def lane(site: str, ops: list[OperationView], unheard: tuple[str, ...] = ()) -> Lane:
    marks = [
        Mark(operation=op.id, knows=op.id not in unheard, status=reply.status)
        for op in ops
        for reply in op.replies
        if reply.site == site
    ]
    return Lane(site=site, marks=tuple(marks))


def test_the_log_has_lanes_and_says_what_beat_what_by_which_rule() -> None:
    beaten = {"effect": Effect.SUPERSEDED, "rule": 4, "sentence": "it is replaced", "beaten_by": "b:1"}
    void = {
        "effect": Effect.VOID,
        "rule": 1,
        "sentence": "it failed",
        "why": "exit code 7",
        "verdict": Verdict.VOID,
    }
    lost, ok, pending = Status.SUPERSEDED, Status.OK, Status.PENDING
    ops = [
        operation("a:1", {"a": (lost, True), "b": (lost, False)}, **beaten),
        operation("b:1", {"a": (ok, True), "b": (ok, True)}),
        operation("a:2", {"a": (Status.VOID, True), "b": (Status.VOID, False)}, **void),
        operation("a:3", {"a": (ok, True), "b": (pending, False)}),
        operation("a:4", {"a": (Status.UNKNOWN, False), "b": (pending, False)}, effect=Effect.DRAFT),
    ]
    found = LogView(
        resource="n",
        effective=("b:1", "a:3"),
        positions=(1, 2),
        operations=tuple(ops),
        lanes=(lane("a", ops), lane("b", ops, unheard=("a:4",))),
        checkpoint=None,
        forgotten={},
    )
    out = drawn(draw_log, [found])
    assert [line.split()[2:4] for line in out[1:6]] == [
        ["◌", "-"],
        ["●", "●"],
        ["✗", "-"],
        ["●", "○"],
        ["?", "·"],
    ]
    assert out[1].endswith("superseded by b:1: it is replaced (rule 4)")
    assert out[2].endswith("effective, position 1")
    assert out[3].endswith("void: it failed (rule 1): exit code 7")
    assert "◌ ran, then superseded" in out[-1]
    assert "► runs now" not in out[-1]
    # A long log has the same lines, although its columns are not measured as a whole.
    pages = [msgspec.structs.replace(found, next="more"), msgspec.structs.replace(found, next=None)]
    long = drawn(draw_log, pages)
    assert long[:6] == out[:6]
    assert long[6:11] == out[1:6]
    assert long[11:] == out[6:]


# -- the rest --------------------------------------------------------------------------------------------


def test_checks_are_grouped_and_what_failed_has_a_hint_and_a_place_to_read() -> None:
    common = {"hint": "start it", "anchor": "docs/troubleshooting.md#peers"}
    checks = (
        Check(group="store", name="room", level=Level.OK, ok=True, detail="enough", **common),
        Check(group="peers", name="site2 is down", level=Level.FAILED, ok=False, detail="never seen", **common),
        Check(group="peers", name="site3 is slow", level=Level.WARNING, ok=True, detail="900 ms away", **common),
    )
    out = drawn(draw_checks, Checks(site="site1", ok=False, checks=checks))
    assert out == [
        "store",
        "  ✓ room: enough",
        "peers",
        "  ✗ site2 is down: never seen",
        "      start it",
        "      see docs/troubleshooting.md#peers",
        "  ! site3 is slow: 900 ms away",
        "      start it",
        "      see docs/troubleshooting.md#peers",
        "",
        "site1: 3 checks, 1 failed, 1 warning",
    ]


def dry_run(**more: Any) -> DryRun:
    usual: dict[str, Any] = {
        "resource": "n", "sites": ("site1", "site2"), "first_at": "site1", "command": "set 1",
        "would_supersede": (), "superseded_by": None, "runs_here": ("new",), "replayed": {},
        "order_not_enforced": False, "unreachable": (), "refused": None, "notes": (),
    }  # fmt: skip
    return DryRun(**(usual | more))


def test_a_dry_run_says_what_would_be_beaten_run_again_and_out_of_reach() -> None:
    beaten = WouldSupersede(operation="site1:2", rule=3, sentence="a later operation replaces it")
    out = drawn(
        draw_dry_run,
        dry_run(
            would_supersede=(beaten,),
            replayed={"site1": (), "site2": ("site1:1",)},
            unreachable=("site2",),
            order_not_enforced=True,
            notes=("mind the gap",),
        ),
    )
    assert "runs again at site2  site1:1" in out
    assert not [line for line in out if line.startswith("runs again at site1")]
    assert [line.split() for line in out if line.startswith("waits for")] == [["waits", "for", "site2"]]
    assert "supersedes site1:2: a later operation replaces it (rule 3)" in out
    assert "its order relative to the other operations cannot be enforced" in out
    assert "note: mind the gap" in out
    refused = drawn(draw_dry_run, dry_run(refused="no"))
    assert refused == ["it would be refused: no"]
    assert "it would have no effect: site1:2" in "\n".join(drawn(draw_dry_run, dry_run(superseded_by=beaten)))


def test_an_event_is_one_line() -> None:
    event = Event(
        place="a1-7",
        id="diverged:1",
        kind="diverged",
        time="2026-11-16T01:41:31.885Z",
        resource="n",
        operation="site1:3",
        type="inc",
        site="site2",
        status=Status.KO,
        detail="exit\ncode 1",
    )
    line = "2026-11-16 01:41:31  diverged          n  site1:3  inc  at site2  KO  exit code 1"
    assert event_line(event).plain == line
    assert event_line(event, wide=True).plain.endswith("[a1-7]")


def test_an_event_says_which_sites_it_is_about() -> None:
    event = Event(place="a1-8", id="1", kind="site-down", time="2026-11-16T01:41:31.885Z", site="site1")
    down = msgspec.structs.replace(event, sites=("site2",))
    assert event_line(down).plain == "2026-11-16 01:41:31  site-down         site2  at site1"
    results = (SiteResult(site="site1", status=Status.OK), SiteResult(site="site2", status=Status.KO))
    summary = msgspec.structs.replace(event, kind="summary", status=Status.KO, results=results)
    assert event_line(summary).plain.endswith("at site1  KO  site1 OK  site2 KO")


@pytest.mark.parametrize(
    ("seconds", "words"),
    [(None, "never"), (0.2, "now"), (12.4, "12 s ago"), (150, "2 min ago"), (7200, "2.0 h ago")],
)
def test_ages_in_words(seconds: float | None, words: str) -> None:
    assert age(seconds) == words
    assert short_time(None) == "-"

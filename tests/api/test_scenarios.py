"""Status and explain of real agents, in every state that a resource can be in."""

from pathlib import Path

from cheops.api.models.operations import Effect, Resolution, ResolveRequest, SubmitRequest, Wait
from cheops.log.operation import Status
from tests.agent.rig import MakeRig, until
from tests.api.agents import Sites, text_of, two_sites
from tests.support.command import ROOT

APP = f"sh {ROOT}/src/cheops/demo/apps/stock"
# A stock that never falls below zero; where another site refuses an operation, it is done in steps of one.
STOCK = {
    "matrix": [
        {"before": "set", "after": "set", "result": "take-one"},
        {"before": "set", "after": "take", "result": "take-both-keep-order"},
        {"before": "take", "after": "take", "result": "take-both"},
    ],
    "allow": [f"{APP} ..."],
    "read": f"{APP} show __ID__",
    "on_error": "decompose",
    "decompose": {"amount": 5, "unit": f"{APP} take __ID__ 1"},
    "cwd": "@FOLDER@",
}
ONLY_AT_SITE1 = "test -e only-at-site1"


def test_cut_off_superseded_replayed_and_order_not_enforced(make_rig: MakeRig) -> None:
    """Two sites that never run at the same time, with operations at both; then they meet."""
    sites = two_sites(make_rig)
    rig = sites.rig
    sites.make("beaten", "set", "true", "tally")
    sites.make("late", "set", "printf base > __ID__", "file")
    sites.make("loose", "add", "printf base > __ID__", "plain")
    assert sites.becomes("site2", "late", "CONVERGED").sentence == "both sites are in sync"

    assert rig.stop("site2") == 0
    sites.sees("site1", "site2", "down")
    _while_cut_off(sites)

    rig.stop("site1")
    rig.start("site2")
    assert sites["site2"].status("late").overall == "UNREACHABLE"
    sites.do("site2", "beaten", "set", "true")
    sites.do("site2", "late", "add", "printf ' two' >> __ID__")
    sites.do("site2", "loose", "add", "printf ' two' >> __ID__")
    rig.start("site1")

    _superseded(sites)
    _replayed(sites)
    _order_not_enforced(sites)


def test_a_replay_and_a_refused_unit_are_told_as_they_were(make_rig: MakeRig) -> None:
    """Two sites that never run at the same time sell more than there is, and write lines; then they meet."""
    sites = two_sites(make_rig, stock=STOCK)
    rig = sites.rig
    sites.make("shoes", "set", f"{APP} set shoes 10", "stock")
    sites.make("late", "set", "printf base > __ID__", "file")
    sites.becomes("site2", "late", "CONVERGED")
    rig.stop("site2")
    sites.do("site1", "shoes", "take", f"{APP} take shoes 6")
    sites.do("site1", "late", "add", "printf ' one' >> __ID__")
    rig.stop("site1")
    rig.start("site2")
    sites.do("site2", "shoes", "take", f"{APP} take shoes 7")
    sites.do("site2", "late", "add", "printf ' two' >> __ID__")
    rig.start("site1")
    _refused_units(sites)
    _replaced_since(sites)


def _refused_units(sites: Sites) -> None:
    for site in sites.names:
        sites.becomes(site, "shoes", "CONVERGED")
        found = sites[site].explain("shoes")
        text = text_of(found)
        refused = "failed at site2 as a whole, and was applied there in unit steps: applied 3 units; unit 4 was"
        assert f"site1:2 {refused} refused: exit code 1: 0 is less than 1" in text
        refused = "failed at site1 as a whole, and was applied there in unit steps: applied 4 units; unit 5 was"
        assert f"site2:1 {refused} refused: exit code 1: 0 is less than 1" in text
        assert found.conclusion == (
            "CONVERGED: both sites are in sync; only partly applied, because a unit was refused: "
            "site2:1 at site1 and site1:2 at site2"
        )
    assert {state.output for state in sites["site1"].verify("shoes").states} == {"0\n"}


def _replaced_since(sites: Sites) -> None:
    """What a replay ran stays what it ran; what has been replaced since is not said to be applied."""
    sites.becomes("site1", "late", "CONVERGED")
    ran = "from a base and ran site1:1, site1:2 and site2:1, in this order"
    assert ran in text_of(sites["site1"].explain("late"))
    sites.do("site1", "late", "set", "printf new > __ID__", Wait.ALL)
    sites.becomes("site1", "late", "CONVERGED")
    text = text_of(sites["site1"].explain("late"))
    assert f"{ran}; since then other operations have replaced all of these" in text


def _while_cut_off(sites: Sites) -> None:
    here = sites["site1"]
    dry = here.dry_run("late", SubmitRequest(type="add", command="true"))
    assert dry.unreachable == ("site2",)
    made = here.submit(
        "late", SubmitRequest(type="add", command="printf ' one' >> __ID__"), wait=Wait.ALL, timeout_s=0.2
    )
    assert (made.satisfied, made.waiting_for) == (False, ("site2",))
    sites.do("site1", "beaten", "inc", "printf x >> __ID__")
    sites.do("site1", "loose", "add", "printf ' one' >> __ID__")
    status = here.status("late")
    assert (status.overall, status.unreachable) == ("UNREACHABLE", ("site2",))
    assert (status.sites[1].reachable, status.sites[1].pending) == (False, 1)
    assert status.sites[1].as_of_s is not None
    text = text_of(here.explain("late"))
    assert "site2 is unreachable; by its last report it still had to process site1:2 (as of" in text
    assert "Unreachable sites catch up automatically" in text


def _superseded(sites: Sites) -> None:
    sites.becomes("site1", "beaten", "CONVERGED")
    beaten = sites["site1"].operation("beaten", "site1:2")
    assert (beaten.effect, beaten.rule, beaten.beaten_by) == (Effect.SUPERSEDED, 4, "site2:1")
    text = text_of(sites["site2"].explain("beaten"))
    assert "concurrent with site2:1" in text
    assert "superseded by site2:1: a concurrent operation replaces it (rule 4)" in text
    assert sites["site1"].log("beaten").effective == ("site2:1",)


def _replayed(sites: Sites) -> None:
    sites.becomes("site2", "late", "CONVERGED")
    shown = sites["site1"].verify("late")
    assert (shown.same, {state.output for state in shown.states}) == (True, {"base one two"})
    text = text_of(sites["site1"].explain("late"))
    assert "site2 replayed to restore the order: it started again from a base and ran " in text
    assert "ran site1:1, site1:2 and site2:1, in this order" in text
    assert "site1 replayed" not in text
    replies = {reply.site: reply for reply in sites["site1"].operation("late", "site1:2").replies}
    assert (replies["site1"].replayed, replies["site2"].replayed) == (False, True)


def _order_not_enforced(sites: Sites) -> None:
    status = sites.becomes("site2", "loose", "DIVERGED")
    assert status.order_not_enforced
    text = text_of(sites["site2"].explain("loose"))
    assert "site2 ran site1:1, site2:1 and site1:2 in this order, which is not the agreed one" in text
    sites.becomes("site1", "loose", "DIVERGED")
    shown = sites["site1"].verify("loose")
    assert not shown.same
    assert shown.diff["site2"][-2:] == ("-base one two", "+base two one")
    done = sites["site1"].resolve(
        "loose", ResolveRequest(resolution=Resolution.FORCE, command="printf forced > __ID__")
    )
    assert done.resolution is Resolution.FORCE
    sites.becomes("site2", "loose", "CONVERGED")
    assert sites["site2"].verify("loose").same


def test_converging_diverged_and_unknown(make_rig: MakeRig) -> None:
    sites = two_sites(make_rig)
    rig = sites.rig
    (rig.folder("site1") / "only-at-site1").touch()
    _converging(sites, rig.folder("site2") / "only-at-site1")
    _diverged(sites)
    _unknown_elsewhere(sites)
    _unknown_at_its_origin(sites)


def _converging(sites: Sites, key: Path) -> None:
    sites.make("slow", "set", "true", "tally")
    sites.do("site1", "slow", "inc", f"{ONLY_AT_SITE1} || exit 75")
    status = sites.becomes("site1", "slow", "CONVERGING")
    assert (status.sites[1].pending, status.sentence) == (1, "operations are pending at site2 (1)")
    text = text_of(sites["site1"].explain("slow"))
    assert "site2 still has to process site1:2" in text
    assert "No action is needed" in text
    assert sites["site1"].operation("slow", "site1:2").replies[1].status in (Status.PENDING, Status.RUNNING)
    key.touch()
    sites.becomes("site1", "slow", "CONVERGED")
    key.unlink()


def _diverged(sites: Sites) -> None:
    sites.make("torn", "set", "true", "tally")
    sites.do("site1", "torn", "inc", f"{ONLY_AT_SITE1} || {{ echo no such file here; exit 1; }}", Wait.ALL)
    for site in sites.names:
        status = sites.becomes(site, "torn", "DIVERGED")
        assert [one.operation for one in status.sites[1].failed] == ["site1:2"]
        text = text_of(sites[site].explain("torn"))
        assert "site1:2 succeeded at site1 but failed at site2: exit code 1: no such file here" in text
        assert "cheops repair torn" in text
    sites["site2"].submit("torn", SubmitRequest(type="set", command="true", kind="force"))  # type: ignore[arg-type]
    sites.becomes("site1", "torn", "CONVERGED")


def _unknown_elsewhere(sites: Sites) -> None:
    sites.make("doubt", "set", "true", "tally")
    begun = sites.rig.folder("site2") / "begun"
    slow_elsewhere = f"{ONLY_AT_SITE1} || {{ touch begun; sleep 60; }}"
    sites.do("site1", "doubt", "inc", slow_elsewhere)
    until(begun.exists, "for site2 to begin")
    sites.rig.kill("site2")
    sites.rig.start("site2")
    for site in sites.names:
        status = sites.becomes(site, "doubt", "DIVERGED")
        assert [one.operation for one in status.sites[1].unknown] == ["site1:2"]
        text = text_of(sites[site].explain("doubt"))
        assert "it is unknown whether site1:2 ran at site2: the site stopped while this was running" in text
        assert "cheops resolve doubt --site site2 --op site1:2 --happened yes|no" in text
    asked = ResolveRequest(resolution=Resolution.HAPPENED, operation="site1:2", site="site2")
    assert sites["site1"].resolve("doubt", asked).site == "site2"
    sites.becomes("site1", "doubt", "CONVERGED")
    assert "the operator says that it ran" in sites["site1"].operation("doubt", "site1:2").replies[1].detail


def _unknown_at_its_origin(sites: Sites) -> None:
    sites.make("guess", "set", "true", "tally")
    (sites.rig.folder("site1") / "began").touch()
    began = sites.rig.folder("site2") / "began"
    sites["site2"].submit(
        "guess",
        SubmitRequest(type="inc", command="test -e began || { touch began; sleep 60; }"),
        wait=Wait.NONE,
    )
    until(began.exists, "for site2 to begin")
    sites.rig.kill("site2")
    sites.rig.start("site2")
    sites.becomes("site2", "guess", "DIVERGED")
    assert "so it was not sent to other sites" in text_of(sites["site2"].explain("guess"))
    asked = ResolveRequest(resolution=Resolution.NOT_HAPPENED)
    assert sites["site2"].resolve("guess", asked).operation == "site2:1"
    sites.becomes("site1", "guess", "CONVERGED")

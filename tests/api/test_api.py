"""The API of real agents, asked by the clients that come with it."""

import asyncio
import http.client
import json
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from cheops.api.endpoints.site import GET_SITE
from cheops.api.models.operations import ChangeSites, Resolution, ResolveRequest, SitesChange, SubmitRequest, Wait
from cheops.api.models.site import Level
from cheops.client import Agent, AgentError, UnreachableError
from cheops.client.async_agent import AsyncAgent
from cheops.log.operation import Kind, Status, Verdict
from cheops.notify.event import Event
from tests.agent.rig import MakeRig, until
from tests.api.agents import TYPES, Sites, two_sites

AWKWARD = "a/b c?#%2F&ü"


def raw(
    agent: Agent, method: str, path: str, body: bytes | None = None, **headers: str
) -> tuple[int, dict[str, str], bytes]:
    """A request as somebody else's client would make it."""
    parts = urlsplit(agent.url)
    connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=60)
    try:
        connection.request(method, path, body, {name.replace("_", "-"): value for name, value in headers.items()})
        answer = connection.getresponse()
        return answer.status, {name.lower(): value for name, value in answer.getheaders()}, answer.read()
    finally:
        connection.close()


def refused(call: object, *arguments: object, **named: object) -> AgentError:
    with pytest.raises(AgentError) as caught:
        call(*arguments, **named)  # type: ignore[operator]
    return caught.value


def test_resources_and_operations(make_rig: MakeRig, tmp_path: Path) -> None:
    rig = make_rig(TYPES, "site1", "site2", "site3")
    sites = Sites(rig)
    rig.start("site1", "site2")
    agent = sites["site1"]
    _awkward_ids(agent)
    _waiting(agent)
    _lines(agent)
    _files(agent, tmp_path)
    _paging(agent)
    _sites_of_a_resource(sites)
    _forwarding(sites)
    _deleting(agent)
    _refusals(agent)


def _awkward_ids(agent: Agent) -> None:
    asked = SubmitRequest(type="set", command="true", sites="site1 & site2", resource_type="file")
    assert agent.submit(AWKWARD, asked).satisfied
    assert agent.resource(AWKWARD).id == AWKWARD
    assert agent.operation(AWKWARD, "site1:1").resource == AWKWARD
    assert [one.id for one in agent.all_resources()] == [AWKWARD]


def _waiting(agent: Agent) -> None:
    slow = SubmitRequest(type="add", command="test -d ../site1/x || sleep 0.3")
    none = agent.submit(AWKWARD, slow, wait=Wait.NONE)
    assert (none.satisfied, none.answers, none.verdict) == (True, (), None)
    first = agent.submit(AWKWARD, slow, wait=Wait.FIRST)
    assert [answer.site for answer in first.answers] == ["site1"]
    assert (first.verdict, first.waiting_for) == (Verdict.OK, ("site2",))
    assert len(agent.submit(AWKWARD, slow, wait=Wait.QUORUM).answers) == 2
    void = agent.submit(AWKWARD, SubmitRequest(type="add", command="echo no; false"))
    assert (void.verdict, void.satisfied, void.waiting_for) == (Verdict.VOID, True, ())
    assert "no" in void.answers[0].detail
    path = "/api/v1/resources/w/operations"
    body = json.dumps({"type": "set", "command": "true", "sites": "site1 & site3", "resource_type": "file"})
    status, headers, found = raw(agent, "POST", path, body.encode(), Prefer="respond-async, wait=0", Cheops_Wait="all")
    assert (status, headers["cheops-operation"]) == (202, "site1:1")
    assert headers["location"] == "/api/v1/resources/w/operations/site1:1"
    assert json.loads(found)["waiting_for"] == ["site1", "site3"] or json.loads(found)["waiting_for"] == ["site3"]


def _lines(agent: Agent) -> None:
    asked = SubmitRequest(type="set", command="echo done", sites="site1 & site3", resource_type="file")
    lines = list(agent.answers("lines", asked, timeout_s=0.5))
    assert [(line.site, line.status) for line in lines] == [("site1", Status.OK), ("site3", Status.PENDING)]
    assert lines[0].output == "done\n"


def _files(agent: Agent, folder: Path) -> None:
    path = folder / "recipe.yml"
    path.write_bytes(b"x" * 3_000_000)
    sent: list[int] = []
    asked = SubmitRequest(type="set", command="wc -c < {recipe.yml}", sites="site1 & site2", resource_type="file")
    found = agent.submit("with-file", asked, files={"recipe.yml": path}, sent=sent.append)
    assert {answer.output.strip() for answer in found.answers} == {"3000000"}
    assert sum(sent) > 3_000_000
    assert list(agent.operation("with-file", "site1:1").files) == ["recipe.yml"]


def _paging(agent: Agent) -> None:
    for number in range(5):
        asked = SubmitRequest(type="set", command="true", sites="site1", resource_type="file")
        agent.submit(f"page{number}", asked)
    page = agent.resources("page", limit=2)
    assert ([one.id for one in page.resources], page.next) == (["page0", "page1"], "page1")
    assert [one.id for one in agent.all_resources("page")] == [f"page{n}" for n in range(5)]
    assert [one.id for one in agent.resources("page3").resources] == ["page3"]
    assert agent.resources("nothing").resources == ()
    for _ in range(3):
        agent.submit("page0", SubmitRequest(type="add", command="true"))
    first = agent.operations("page0", limit=3)
    rest = agent.operations("page0", first.next, limit=3)
    assert [op.id for op in (*first.operations, *rest.operations)] == [f"site1:{n}" for n in range(1, 5)]
    assert rest.next is None


def _sites_of_a_resource(sites: Sites) -> None:
    agent = sites["site1"]
    added = agent.change_sites("page1", ChangeSites(sites="site2", how=SitesChange.ADD))
    assert (added.sites, added.satisfied) == (("site1", "site2"), True)
    until(lambda: sites["site2"].status("page1").overall == "CONVERGED")
    removed = sites["site2"].change_sites("page1", ChangeSites(sites="site1", how=SitesChange.REMOVE))
    assert removed.verdict is Verdict.OK
    until(lambda: sites["site2"].resource("page1").sites[0].site == "site2")
    alone = ChangeSites(sites="site1", delete_with="rm page1")
    assert "it needs 'delete_copy'" in str(refused(sites["site2"].change_sites, "page1", alone))
    assert "must stay at one site" in str(
        refused(sites["site2"].change_sites, "page1", ChangeSites(sites="site2", how=SitesChange.REMOVE))
    )
    _ask_elsewhere(sites)


def _ask_elsewhere(sites: Sites) -> None:
    """A site that a resource has left hears nothing more of it, so it gives no answer that may be wrong."""
    agent, at_site2 = sites["site1"], f"site2 ({sites['site2'].url})"
    gone = f"'page1' is no longer at site1, which gets no news of it; ask {at_site2}"
    until(lambda: "page1" not in [one.id for one in agent.all_resources()])
    for ask in (agent.resource, agent.status, agent.explain, agent.log, agent.matrix, agent.delete):
        left = refused(ask, "page1")
        assert (left.http_status, str(left)) == (404, gone)
    assert agent.submit("page1", SubmitRequest(type="set", command="true")).operation.startswith("site2:")
    never = refused(agent.status, "never")
    assert never.http_status == 404
    assert str(never) == (
        "no resource 'never' is known at site1; only the sites of a resource know it. Other sites: "
        f"{at_site2} and site3 ({sites.rig.url('site3')})"
    )


def _forwarding(sites: Sites) -> None:
    asked = SubmitRequest(type="set", command="true", sites="site2", resource_type="file")
    assert sites["site1"].submit("elsewhere", asked).operation == "site2:1"
    assert [a.site for a in sites["site1"].answers("elsewhere", asked)] == ["site2"]
    dry = sites["site1"].dry_run("elsewhere", asked)
    assert (dry.sites, dry.first_at) == (("site2",), None)
    assert "site1 is not involved" in (dry.refused or "")


def _deleting(agent: Agent) -> None:
    """The type's reset needs no permission of its own; a type without one needs a command."""
    assert agent.delete("page2").verdict is Verdict.OK
    assert agent.resource("page2").deleted
    plain = SubmitRequest(type="add", command="true", sites="site1", resource_type="plain")
    agent.submit("bare", plain)
    assert "name the command" in str(refused(agent.delete, "bare"))
    assert agent.delete("bare", "rm -f bare").verdict is Verdict.OK


def _refusals(agent: Agent) -> None:
    unknown = refused(agent.status, "nobody")
    assert (unknown.http_status, "no resource 'nobody' is known at site1" in str(unknown)) == (404, True)
    assert refused(agent.operation, "page0", "site9:1").http_status == 404
    assert refused(agent.type_matrix, "odd").http_status == 400
    assert "a command needs one site" in str(
        refused(agent.submit, "new", SubmitRequest(type="set", command="true", sites="site1 ; site2"))
    )
    strong = SubmitRequest(type="set", command="true", sites="strong(site1 & site2)")
    for call in (agent.submit, agent.dry_run):
        unbuilt = refused(call, "new", strong)
        assert (unbuilt.http_status, "the level 'strong' is not implemented yet" in str(unbuilt)) == (501, True)
    assert refused(agent.submit, "new", SubmitRequest(type="set", command="true")).http_status == 400
    seal = refused(agent.submit, "new", SubmitRequest(type="x", command="true", kind=Kind.SEAL))
    assert seal.http_status == 422
    moved = SubmitRequest(type="set", command="true", sites="site1 & site2")
    assert refused(agent.submit, "page0", moved).http_status == 409
    assert "use 'cheops sites' to change that" in (agent.dry_run("page0", moved).refused or "")
    nothing = refused(agent.resolve, "page0", ResolveRequest(resolution=Resolution.HAPPENED))
    assert (nothing.http_status, "nothing is UNKNOWN at site1" in str(nothing)) == (409, True)
    for body, status in (
        (b"{", 400),
        (b"[]", 422),
        (b'{"type": "x", "odd": 1}', 422),
        (b" " * 2_000_000, 413),
    ):
        found, headers, said = raw(
            agent, "POST", "/api/v1/resources/new/operations", body, Content_Type="application/json"
        )
        assert (found, headers["content-type"]) == (status, "application/problem+json")
        assert json.loads(said)["detail"]
    assert raw(agent, "GET", "/api/v1/nothing")[0] == 404
    assert raw(agent, "PATCH", "/api/v1/resources")[0] == 405
    assert raw(agent, "GET", "/api/v1/resources?limit=0")[0] == 422
    assert raw(agent, "GET", "/api/v1/resources/%FF")[0] == 400
    with pytest.raises(UnreachableError, match="no response from the agent"):
        Agent("http://127.0.0.1:1").sites()


def test_sites_and_checks(make_rig: MakeRig) -> None:
    sites = two_sites(make_rig)
    agent = sites["site1"]
    sites.sees("site1", "site2", "up")
    _checks(agent)
    asked = SubmitRequest(type="set", command="true", sites="site1 & site2", resource_type="file")
    for id_ in ("seen", "other"):
        agent.submit(id_, asked)
    asyncio.run(_asynchronous(agent.url))
    _forgetting(sites)


def _checks(agent: Agent) -> None:
    found = agent.check()
    by_group = {check.group: check.level for check in found.checks if check.level is not Level.OK}
    assert (found.ok, by_group) == (True, {"configuration": Level.WARNING, "security": Level.WARNING})
    assert agent.ping("site2").answers_as == "site2"
    assert agent.health().ok
    assert agent.ready().ok
    assert raw(agent, "GET", "/readyz")[0] == 200
    status, headers, body = raw(agent, "GET", "/metrics")
    assert (status, headers["content-type"].split(";")[0]) == (200, "text/plain")
    assert b'cheops_site_up{peer="site2"} 1\n' in body
    assert b'cheops_site_pending{peer="site2"} ' in body
    assert refused(agent.call, GET_SITE, "site3").http_status == 404


async def _asynchronous(url: str) -> None:
    async with AsyncAgent(url) as agent:
        assert (await agent.status("seen")).overall in ("CONVERGED", "CONVERGING")
        last = (await agent.changes()).last
        answers = [one async for one in agent.answers("seen", SubmitRequest(type="add", command="true"))]
        assert {one.site for one in answers} == {"site1", "site2"}
        heard: list[Event] = []
        async for event in agent.events("seen", last):
            heard.append(event)
            if event.kind == "ran" and event.site == "site2":
                break
        assert heard[0].kind == "accepted"
        assert [one.id async for one in agent.resources()] == ["other", "seen"]
        assert "seen" in (await agent.explain("seen")).steps[0].text
        with pytest.raises(AgentError, match="no resource"):
            await agent.log("nobody")
    async with AsyncAgent("http://127.0.0.1:1") as nobody:
        with pytest.raises(UnreachableError):
            await nobody.sites()


def _forgetting(sites: Sites) -> None:
    agent = sites["site1"]
    assert "is up" in str(refused(agent.forget, "site2"))
    sites.rig.stop("site2")
    sites.sees("site1", "site2", "down")
    down = agent.check()
    assert (down.ok, [check.name for check in down.checks if not check.ok]) == (False, ["site2 is down"])
    assert not agent.ping("site2").ok
    listed = refused(agent.forget, "site2")
    assert (listed.http_status, "on the list of 2 resources" in str(listed)) == (409, True)
    assert agent.forget("site2", force=True).resources == ("other", "seen")
    assert agent.call(GET_SITE, "site2").state == "forgotten"
    for id_ in ("other", "seen"):
        agent.change_sites(id_, ChangeSites(sites="site2", how=SitesChange.REMOVE), wait=Wait.FIRST)
        assert [site.site for site in agent.resource(id_).sites] == ["site1"]
    admitted = agent.admit("site2")
    assert (admitted.forgotten, admitted.unreachable) == (False, ())
    assert agent.call(GET_SITE, "site2").state != "forgotten"

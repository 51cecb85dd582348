"""Who may do what: every route has its right, and every right is kept to, by tokens, sites, browsers and nobody."""

import hashlib
import json
from collections.abc import Iterator
from typing import Any

import pytest
from starlette.routing import BaseRoute, Mount, Route

from cheops.api.app import application
from cheops.api.endpoints import BASE
from cheops.api.endpoints.site import GET_SITE
from cheops.api.models.operations import ChangeSites, SitesChange, SubmitRequest, Wait
from cheops.api.openapi import document, operations_of
from cheops.api.permissions import RIGHTS, right_to
from cheops.client import AgentError
from cheops.config.site import read_site
from cheops.node.node import Node
from cheops.peers.requests import FORMS, PREFIX, RequestKind
from cheops.security.principal import Reach, Role
from tests.agent.rig import Rig, until
from tests.security.clients import agent, ask, is_unharmed, local, made, refusals, rig_of, token
from tests.security.sites import all_up, answer, as_site

SITES = ("site1", "site2", "site3")


@pytest.fixture(scope="module")
def rig(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    """Two resources of one type and one of another, all at site1 and site2; one that is at site1 alone. site3
    has none of them."""
    found = rig_of(tmp_path_factory.mktemp("roles"), *SITES)
    try:
        found.start()
        all_up(found)
        for id_, rtype, sites in (
            ("both", "file", "site1 & site2"),
            ("alone", "file", "site1"),
            ("other", "tally", "site1 & site2"),
        ):
            asked = SubmitRequest(type="set", command="echo x > __ID__", sites=sites, resource_type=rtype)
            assert local(found).submit(id_, asked).satisfied
        yield found
    finally:
        found.close()


def change(rtype: str = "file", sites: str = "site1 & site2") -> SubmitRequest:
    return SubmitRequest(type="set", command="echo y > __ID__", sites=sites, resource_type=rtype)


def forbidden(asked: Any, *given: Any, **named: Any) -> str:
    """What the agent says when it refuses."""
    with pytest.raises(AgentError) as caught:
        asked(*given, **named)
    assert caught.value.http_status == 403, caught.value
    return str(caught.value)


# -- the table -------------------------------------------------------------------------------------------------


def walked(routes: Any, prefix: str = "") -> Iterator[tuple[str, str]]:
    for route in routes:
        if isinstance(route, Route):
            yield from ((method, f"{prefix}{route.path}") for method in route.methods or ())
        elif isinstance(route, Mount):
            assert route.routes, f"{route.path} cannot be looked into"
            yield from walked(route.routes, f"{prefix}{route.path}")
        else:
            assert isinstance(route, BaseRoute)
            pytest.fail(f"{route} is no route that this test knows")


async def all_routes(node: Node) -> set[tuple[str, str]]:
    await node.start()
    try:
        return set(walked(application(node).routes))
    finally:
        await node.stop()


def test_every_route_of_the_application_has_a_right_and_every_right_a_route(tmp_path: Any) -> None:
    import asyncio  # noqa: PLC0415

    (tmp_path / "site.yaml").write_text("site: a\nsecurity: none\n")
    found = asyncio.run(all_routes(Node(read_site(tmp_path / "site.yaml"))))
    api = {(method, path) for method, path in found if path.startswith(BASE)}
    documented = {(method, f"{BASE}{path}") for method, path, _ in operations_of(document())}
    assert documented | {("GET", f"{BASE}/openapi.json")} == api, "a route of the API that was not walked through"
    assert len(found) > 20
    assert not [route for route in found if right_to(*route) is None]
    asked = {("GET" if method == "HEAD" else method, path) for method, path in found}
    assert asked == set(RIGHTS)


def test_what_nobody_needs_a_token_for_is_this_and_nothing_else() -> None:
    """Probes, signing in, and joining, which has secrets of its own."""
    assert {key for key, right in RIGHTS.items() if right.is_open} == {
        ("GET", "/healthz"),
        ("GET", "/readyz"),
        ("GET", "/api/v1/healthz"),
        ("GET", "/api/v1/readyz"),
        ("POST", "/api/v1/session"),
        ("GET", "/join/authority"),
        ("POST", "/join"),
    }


def test_what_sites_may_is_this_and_nothing_else() -> None:
    assert {key for key, right in RIGHTS.items() if right.sites} == {
        ("POST", "/exec/{id:path}"),
        ("POST", "/api/v1/resources/{id}/operations"),
        ("POST", "/api/v1/resources/{id}/resolve"),
    }


@pytest.mark.parametrize("key", sorted(RIGHTS), ids=" ".join)
def test_each_route_refuses_nobody_and_whoever_may_too_little(rig: Rig, key: tuple[str, str]) -> None:
    """Asked as it stands: what is wrong with the request itself comes after who it is."""
    method, template = key
    path = template.replace("{id:path}", "both").replace("{id}", "both")
    path = path.replace("{name}", "site2").replace("{op}", "site1:1").replace("{token}", "x").replace("{db}", "cheops")
    right = RIGHTS[key]
    if right.is_open:
        assert ask(rig, method, path).status not in (401, 403) or path == "/join"
        return
    assert ask(rig, method, path).status == 401
    lower = {Role.OPERATOR: Role.VIEWER, Role.ADMIN: Role.OPERATOR}.get(right.role or Role.VIEWER)
    if right.role is None:
        lower = Role.ADMIN
    if lower:
        said = ask(rig, method, path, secret=_of_role(rig, lower))
        assert said.status == 403, said
    if not right.sites and not path.startswith("/peer/"):  # sites are served there before the web side
        status, said_ = answer(rig, "site1", as_site(rig, "site2"), method, path)
        assert status == 403, said_


@pytest.mark.parametrize("kind", RequestKind)
def test_requests_between_agents_are_for_sites_alone(rig: Rig, kind: RequestKind) -> None:
    """The certificate of a site opens them, and nothing else does: no token, not even the agent's own socket."""
    form = FORMS[kind]
    path = f"{PREFIX}{kind}/{'0' * 64}" if form.is_named else f"{PREFIX}{kind}"
    assert ask(rig, form.method, path).status == 401
    assert ask(rig, form.method, path, secret=_of_role(rig, Role.ADMIN)).status == 403
    assert answer(rig, "site1", as_site(rig, "site2"), form.method, path)[0] not in (401, 403)


_known: dict[tuple[int, Role], str] = {}


def _of_role(rig: Rig, role: Role) -> str:
    key = (id(rig), role)
    if key not in _known:
        _known[key] = token(rig, f"any {role.value}", role)
    return _known[key]


# -- roles -----------------------------------------------------------------------------------------------------


def test_a_viewer_reads_and_changes_nothing(rig: Rig) -> None:
    asked = agent(rig, _of_role(rig, Role.VIEWER))
    assert asked.status("both").overall
    assert asked.log("both").operations
    assert asked.check().site == "site1"
    assert asked.verify("both").same
    assert asked.dry_run("both", change()).resource == "both"
    assert [one.name for one in asked.sites().sites] == list(SITES)
    assert ask(rig, "GET", "/metrics", secret=_of_role(rig, Role.VIEWER)).status == 200
    before = refusals(rig, "wrong role")
    told = forbidden(asked.submit, "both", change())
    assert "operator" in told
    assert "viewer" in told
    forbidden(asked.delete, "both")
    forbidden(asked.forget, "site3")
    forbidden(asked.tokens)
    assert refusals(rig, "wrong role") == before + 4


def test_a_viewer_shows_by_commands_that_only_show(rig: Rig) -> None:
    """Where a type has no list of those, any command that it allows may change something."""
    local(rig).submit("listed", change("shown", "site1"))
    asked = agent(rig, _of_role(rig, Role.VIEWER))
    assert asked.verify("listed", "cat __ID__").states[0].status == "OK"
    told = forbidden(asked.verify, "both", "echo gone > __ID__")
    assert "'show'" in told
    form = "command=echo+gone+%3E+__ID__&sites=site1"
    kind = {"Content-Type": "application/x-www-form-urlencoded"}
    said = ask(rig, "POST", "/show/both", form.encode(), secret=_of_role(rig, Role.VIEWER), headers=kind)
    assert said.status == 403
    assert agent(rig, _of_role(rig, Role.OPERATOR)).verify("both", "cat __ID__").states


def test_an_operator_changes_resources_and_not_the_mesh(rig: Rig) -> None:
    asked = agent(rig, _of_role(rig, Role.OPERATOR))
    assert asked.submit("mine", change(sites="site1")).satisfied
    assert asked.delete("mine", wait=Wait.FIRST).operation
    forbidden(asked.forget, "site3")
    forbidden(asked.audit)
    assert ask(rig, "GET", "/db/cheops/_changes", secret=_of_role(rig, Role.OPERATOR)).status == 403


def test_an_administrator_reads_everything(rig: Rig) -> None:
    secret = _of_role(rig, Role.ADMIN)
    assert ask(rig, "GET", "/db/cheops/_changes", secret=secret).status == 200
    assert agent(rig, secret).tokens().tokens
    assert agent(rig, secret).audit().entries


# -- limits ----------------------------------------------------------------------------------------------------


def test_a_token_of_one_type_does_not_reach_another(rig: Rig) -> None:
    asked = agent(rig, token(rig, "files", Role.OPERATOR, types=("file",)))
    assert {one.type for one in asked.all_resources()} == {"file"}
    assert asked.submit("both", change()).operation
    before = refusals(rig, "beyond the token's limits")
    told = forbidden(asked.submit, "other", change("tally"))
    assert "tally" in told
    assert "file" in told
    forbidden(asked.submit, "new", change("tally", "site1"))
    for read in (asked.status, asked.log, asked.resource, asked.explain, asked.matrix, asked.operations):
        forbidden(read, "other")
    forbidden(asked.type_matrix, "tally")
    forbidden(asked.check)
    forbidden(asked.changes, "other")
    assert refusals(rig, "beyond the token's limits") >= before + 10
    assert is_unharmed(rig)


def test_a_token_of_one_site_sees_what_is_there_and_changes_what_is_nowhere_else(rig: Rig) -> None:
    asked = agent(rig, token(rig, "here", Role.OPERATOR, sites=("site1",)))
    assert asked.status("both").overall, "it is at site1, too"
    assert asked.submit("alone", change(sites="site1")).satisfied
    told = forbidden(asked.submit, "both", change())
    assert "site2" in told
    forbidden(asked.submit, "new-everywhere", change())
    forbidden(asked.change_sites, "alone", ChangeSites(sites="site2", how=SitesChange.ADD))
    assert [one.name for one in asked.sites().sites] == ["site1"]
    forbidden(asked.call, GET_SITE, "site2")
    away = agent(rig, token(rig, "away", Role.VIEWER, sites=("site2",)))
    assert "alone" not in {one.id for one in away.all_resources()}
    forbidden(away.status, "alone")


def test_events_are_those_that_a_token_reaches(rig: Rig) -> None:
    limited = agent(rig, token(rig, "hears", Role.VIEWER, types=("tally",)))
    since = limited.changes().last
    local(rig).submit("both", change())
    local(rig).submit("other", SubmitRequest(type="set", command="echo z > __ID__"))
    found = until(lambda: [e for e in limited.changes(None, since).events if e.kind == "ran"])
    told = limited.changes(None, since).events
    assert found
    assert {event.resource for event in told if event.resource} == {"other"}
    assert {e.resource for e in local(rig).changes(None, since).events} >= {"both", "other"}
    stream = limited.events(None, since)
    assert next(event for event in stream if event.resource).resource == "other"


def test_types_and_services_are_one_list() -> None:
    only_types = Reach(types=frozenset(["a"]))
    assert only_types.has_type("a", None)
    assert not only_types.has_type("http/image", "image")
    both = Reach(types=frozenset(["a"]), services=frozenset(["image"]))
    assert both.has_type("http/image", "image")
    assert not both.has_type("b", None)
    assert Reach().has_type("anything", None)


# -- sites -----------------------------------------------------------------------------------------------------


def by_site(rig: Rig, method: str, path: str, body: Any = None, site: str = "site3", **headers: str) -> tuple[int, Any]:
    """Of a site that shows its own certificate: what one that was stolen can do."""
    sent = json.dumps(body).encode() if body is not None else None
    return answer(rig, "site1", as_site(rig, site), method, path, body=sent, headers=headers)


def test_a_site_reads_nothing_that_is_not_its_own(rig: Rig) -> None:
    before = refusals(rig, "not for sites")
    for path in (
        "/db/",
        "/db/cheops",
        "/db/cheops/_changes",
        "/api/v1/resources/both",
        "/api/v1/events",
        "/metrics",
    ):
        assert by_site(rig, "GET", path)[0] == 403, path
    assert by_site(rig, "POST", "/db/cheops/_bulk_get", {"docs": []})[0] == 403
    assert by_site(rig, "POST", "/db/cheops/_bulk_docs", {"docs": [], "new_edits": False})[0] == 403
    assert by_site(rig, "GET", "/db/cheops/_changes", site="site2")[0] == 403, "also one that is involved"
    assert refusals(rig, "not for sites") >= before + 9
    assert is_unharmed(rig)


def test_a_site_is_shown_the_state_of_what_it_is_involved_in(rig: Rig) -> None:
    asked = {"resource": "both", "command": ""}
    assert by_site(rig, "POST", "/peer/show", asked, site="site2")[0] == 200
    status, said = by_site(rig, "POST", "/peer/show", asked)
    assert status == 403
    assert "not one of the sites" in said["detail"]
    assert by_site(rig, "POST", "/peer/show", {"resource": "nowhere", "command": "cat x"}, site="site2")[0] == 403


def test_a_site_gets_the_documents_of_its_own_resources(rig: Rig) -> None:
    incarnation = next(one.incarnation for one in local(rig).sites().sites if one.here)
    ids = [f"op/both/site1/{incarnation}/1", f"op/alone/site1/{incarnation}/1", "ledger/both", "x"]
    asked = {"resource": "both", "ids": ids}
    status, said = by_site(rig, "POST", "/peer/documents", asked, site="site2")
    assert (status, [one["_id"] for one in said["documents"]]) == (200, ids[:1])
    status, said = by_site(rig, "POST", "/peer/documents", asked)
    assert status == 403, said
    mistakes: tuple[Any, ...] = ({"resource": "both"}, {"resource": "both", "ids": [1]}, [])
    for wrong in mistakes:
        assert by_site(rig, "POST", "/peer/documents", wrong, site="site2")[0] == 400


def test_a_site_gets_the_files_of_its_own_resources(rig: Rig, tmp_path: Any) -> None:
    content = b"for site1 and site2 only"
    (tmp_path / "part").write_bytes(content)
    asked = SubmitRequest(type="set", command="cp {part} __ID__", sites="site1 & site2", resource_type="file")
    assert local(rig).submit("with-file", asked, files={"part": tmp_path / "part"}).satisfied
    path = f"/peer/files/{hashlib.sha256(content).hexdigest()}"
    assert by_site(rig, "GET", path, site="site2") == (200, content)
    status, said = by_site(rig, "GET", path)
    assert status == 403, said
    assert by_site(rig, "GET", f"/peer/files/{'0' * 64}")[0] == 404


def test_a_site_that_is_not_involved_cannot_have_operations_made(rig: Rig) -> None:
    """What it hands on counts as its own wish: a stolen site cannot launder it."""
    before = local(rig).status("both", fresh_s=0), len(local(rig).log("both").operations)
    body = {"type": "set", "command": "echo stolen > __ID__", "sites": "site1 & site2"}
    for headers in ({}, {"Cheops-Forwarded-By": "site3"}):
        status, said = by_site(rig, "POST", "/api/v1/resources/both/operations", body, **headers)
        assert status == 403, said
        assert "site3" in said["detail"]
    new = {**body, "resource_type": "file"}
    assert by_site(rig, "POST", "/api/v1/resources/planted/operations", new)[0] == 403
    resolve = {"resolution": "force", "type": "set", "command": "echo stolen > __ID__"}
    assert by_site(rig, "POST", "/api/v1/resources/both/resolve", resolve)[0] == 403
    assert by_site(rig, "DELETE", "/api/v1/resources/both")[0] == 403
    assert by_site(rig, "PUT", "/api/v1/resources/both/sites", {"sites": "site3"})[0] == 403
    assert len(local(rig).log("both").operations) == before[1]
    assert is_unharmed(rig)


def test_a_token_with_limits_does_not_learn_how_many_resources_there_are(rig: Rig) -> None:
    agent(rig, token(rig, "counts", Role.VIEWER)).site_health()
    limited = agent(rig, token(rig, "counts-some", Role.VIEWER, types=("file",)))
    with pytest.raises(AgentError, match="about the site as a whole"):
        limited.site_health()


def test_what_is_handed_on_is_held_to_the_limits_of_the_token(rig: Rig) -> None:
    """The site that is asked knows the token, the other one the resource."""
    limits = {"Cheops-Forwarded-By": "site2", "Cheops-Limits": json.dumps({"types": ["file"]})}
    body = {"type": "set", "command": "echo 1 > __ID__"}
    status, said = by_site(rig, "POST", "/api/v1/resources/other/operations", body, site="site2", **limits)
    assert status == 403
    assert "limited" in said["detail"]
    assert by_site(rig, "POST", "/api/v1/resources/both/operations", body, site="site2", **limits)[0] in (
        200,
        202,
    )


# -- browsers --------------------------------------------------------------------------------------------------


def signed_in(rig: Rig, role: Role, name: str) -> tuple[str, str]:
    found = made(rig, name, role)
    said = ask(rig, "POST", "/api/v1/session", {"token": found.secret})
    assert said.status == 200
    cookie = said.headers["set-cookie"]
    assert found.secret not in cookie
    for word in ("__Host-cheops=", "HttpOnly", "Secure", "SameSite=strict", "Path=/"):
        assert word.lower() in cookie.lower()
    return cookie.split(";")[0], found.token.id


def test_a_browser_signs_in_reads_changes_and_signs_out(rig: Rig) -> None:
    cookie, _ = signed_in(rig, Role.OPERATOR, "browser")
    own = {"Cookie": cookie, "Origin": rig.url("site1"), "Cheops-Session": "1"}
    path, body = "/api/v1/resources/alone/operations", {"type": "set", "command": "echo b > __ID__"}
    assert ask(rig, "GET", "/api/v1/session", headers={"Cookie": cookie}).json["name"] == "browser"
    assert ask(rig, "POST", path, body, headers=own).status == 200
    before = refusals(rig, "cross-site request")
    for missing in ("Origin", "Cheops-Session"):
        fewer = {name: value for name, value in own.items() if name != missing}
        assert ask(rig, "POST", path, body, headers=fewer).status == 403, missing
    assert ask(rig, "POST", path, body, headers={**own, "Origin": "https://evil.example"}).status == 403
    assert refusals(rig, "cross-site request") == before + 3
    assert ask(rig, "DELETE", "/api/v1/session", headers=own).status == 200
    assert ask(rig, "GET", "/api/v1/session", headers={"Cookie": cookie}).status == 401


def test_a_session_ends_with_its_token(rig: Rig) -> None:
    cookie, id_ = signed_in(rig, Role.VIEWER, "ending")
    local(rig).revoke_token(id_)
    assert ask(rig, "GET", "/api/v1/session", headers={"Cookie": cookie}).status == 401
    assert ask(rig, "GET", "/api/v1/session", headers={"Cookie": "__Host-cheops=" + "x" * 300}).status == 401
    assert ask(rig, "POST", "/api/v1/session", {"token": "cheops_wrong"}).status in (401, 429)


def test_without_security_a_page_from_elsewhere_cannot_use_a_browser_on_this_machine(tmp_path: Any) -> None:
    rig = rig_of(tmp_path, secure=False)
    try:
        rig.start()
        form = b"command=true&sites=site1&type=set&resource-type=file"
        kind = {"Content-Type": "application/x-www-form-urlencoded"}
        assert ask(rig, "POST", "/exec/a", form, headers=kind).status == 200
        for header in (
            {"Origin": "https://evil.example"},
            {"Origin": "null"},
            {"Sec-Fetch-Site": "cross-site"},
            {"Host": "evil.example:8079"},  # a name of theirs that leads here
        ):
            assert ask(rig, "POST", "/exec/a", form, headers={**kind, **header}).status == 403, header
        assert refusals(rig, "cross-site request") == 3
        assert refusals(rig, "foreign host name") == 1
        secret = token(rig, "held", Role.VIEWER)
        assert ask(rig, "POST", "/exec/a", form, headers=kind, secret=secret).status == 403, (
            "who shows one is held to it"
        )
        assert is_unharmed(rig)
    finally:
        rig.close()

"""Through the gateway nobody reads or changes what a direct call would have refused, whatever the configuration."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.gateway.stage import Answer, both_planes
from tests.gateway.tenants.service import MARK, Token, admin_password
from tests.gateway.tenants.sites import EVERYWHERE, SERVICES, SITES, TenantSites, running

plane = both_planes

OWNER = Token("site1", "alice")
CLIENTS: dict[str, Token | None] = {
    "anonymous": None,
    "expired": Token("site1", "alice", is_expired=True),
    "of another site": Token("site2", "alice"),
    "other tenant": Token("site1", "bob"),
    "reader": Token("site1", "alice", "reader"),
}
# Where a request of a client of site1 is decided, by its scope: nothing is asked of another service before.
SCOPES = {None: "site1", "site1": "site1", "site2": "site2", EVERYWHERE: "site1", "site1 ; site2": "site1"}
# `forward` says what another site gets of the client's credentials: these are the scopes with which one is asked.
ELSEWHERE = ("site2", EVERYWHERE, "site1 ; site2")
DATA = "what-alice-wrote"


def scopes_for(plane: str, service: str) -> tuple[str | None, ...]:
    """How a service is replicated is the agent's affair, and HAProxy's configuration says nothing of it: where HAProxy
    forwards, the ways to replicate differ only in what is replicated."""
    if plane == "haproxy" and not service.startswith("mapped"):
        return (EVERYWHERE,)
    return ELSEWHERE if service.endswith("none") else tuple(SCOPES)


@pytest.fixture(scope="module")
def sites(tmp_path_factory: pytest.TempPathFactory, plane: str) -> Iterator[TenantSites]:
    with running(tmp_path_factory.mktemp("tenants") / "rig", plane) as started:
        yield started


class Target(NamedTuple):
    meta_id: str  # of a replicated server of alice
    note: str  # the name of a replicated note of alice
    local_id: str  # of a server of alice at site1 that is not replicated


def created(answer: Answer) -> str:
    assert answer.status == 201, (answer.status, answer.body)
    return str(answer.json["server"]["id"])


def make(sites: TenantSites, service: str) -> Target:
    has_copies = not service.startswith("bare")
    wait = {"Cheops_Wait": "all" if has_copies else "first"}
    server = {"server": {"name": DATA}}
    meta_id = created(sites.call("site1", service, "POST", "/servers", server, EVERYWHERE, OWNER, **wait))
    note = sites.call("site1", service, "PUT", "/notes/mine", {"text": DATA}, EVERYWHERE, OWNER, **wait)
    assert note.status == 201, note.body
    local_id = created(sites.call("site1", service, "POST", "/servers", server, token=OWNER))
    return Target(meta_id, "mine", local_id)


def requests(target: Target, mark: str) -> Iterator[tuple[str, str, Any]]:
    server, note = f"/servers/{target.meta_id}", f"/notes/{target.note}"
    for path in (server, f"/servers/{target.local_id}", note):
        content = {"text": mark} if path == note else {"server": {"name": mark}}
        yield "GET", path, None
        yield "PUT", path, content
        if path != note:
            yield "PATCH", path, content
        yield "DELETE", path, None
    yield "GET", "/servers", None
    yield "POST", "/servers", {"server": {"name": mark}}


def may(token: Token | None, site: str, method: str, path: str) -> bool:
    """Whether the service of a site does what a client asks for, if the client asks it directly."""
    if token is None or token.is_expired or token.site != site:
        return False
    if path == "/servers":
        return method == "GET" or token.role == "member"
    return token.tenant == "alice" and (method == "GET" or token.role == "member")


@pytest.mark.parametrize("service", SERVICES)
def test_nobody_gets_what_a_direct_call_would_have_refused(sites: TenantSites, plane: str, service: str) -> None:
    target = make(sites, service)
    before, refused = _of(sites.state(service), "alice", "admin"), list[str]()
    scopes = scopes_for(plane, service)
    cases = [(client, scope) for client in CLIENTS for scope in scopes]
    for client, scope in cases:
        token, site = CLIENTS[client], SCOPES[scope]
        known = token if site == "site1" or service.endswith("client") else None  # by the site that decides
        for number, (method, path, content) in enumerate(requests(target, mark := f"<{client} by {scope}>")):
            unique = mark.replace(">", f" {number}>")
            sent = json.loads(json.dumps(content).replace(mark, unique))
            is_allowed = may(known, site, method, path)
            if is_allowed and path != "/servers":
                continue  # it is alice herself, at another site
            answer = sites.call("site1", service, method, path, sent, scope, token)
            what = (client, scope, method, path, answer.status, answer.body)
            assert DATA.encode() not in answer.body or (is_allowed and token and token.tenant == "alice"), what
            if not is_allowed:
                assert answer.status in (401, 403, 404, 409, 503), what
                assert _of(sites.state(service), "alice", "admin") >= before, what
                refused.append(unique)
    if not service.startswith("bare"):  # whatever was under way is done when this is
        done = sites.call(
            "site1",
            service,
            "PATCH",
            f"/servers/{target.meta_id}",
            {"server": {"n": 1}},
            token=OWNER,
            Cheops_Wait="all",
        )
        assert done.headers["Cheops-Replicas"].count("status=OK") == 3, done.body
    texts = json.dumps(sites.state(service))
    seen = [one for site in SITES for one in sites.database(site, service).seen]
    by_sites = json.dumps([body for tenant, _, _, body in seen if tenant == "admin"])
    assert len(refused) > 40 * len(scopes)
    assert not [mark for mark in refused if mark in texts or mark in by_sites]
    assert not [mark for mark in refused for *_, body in sites.database("site3", service).seen if mark in body]


def _of(state: dict[str, Any], *owners: str) -> set[str]:
    """What tenants have, as texts that can be compared."""
    return {
        json.dumps([site, kind, key, item], sort_keys=True)
        for site, kinds in state.items()
        for kind, items in kinds.items()
        for key, item in items.items()
        if item["owner"] in owners
    }


def test_a_client_gets_its_own_rights_and_nothing_is_written_down(sites: TenantSites) -> None:
    """The owner creates, changes and deletes at all sites; whose the replicas are, and who sees which secret."""
    for service in SERVICES:
        if service.startswith("bare"):
            continue
        owner = "alice" if service.startswith("mapped") else "admin"
        made = sites.call(
            "site1", service, "POST", "/servers", {"server": {"name": "hers"}}, EVERYWHERE, OWNER, Cheops_Wait="all"
        )
        meta_id = created(made)
        local_id = str(sites.replicant("site1", meta_id)["local_id"])
        assert made.json["server"]["adminPass"] == admin_password(local_id)  # the client gets the real one
        owners = [
            sites.state(service)[site]["servers"][str(sites.replicant(site, meta_id)["local_id"])]["owner"]
            for site in SITES
        ]
        assert owners == ["alice", owner, owner]
        # At another site its owner sees it only if it is hers there.
        there = sites.call("site2", service, "GET", f"/servers/{meta_id}", token=Token("site2", "alice"))
        assert there.status == (200 if owner == "alice" else 404)
        path = f"/servers/{meta_id}"
        for site, client in (("site1", Token("site1", "bob")), ("site1", None), ("site2", Token("site2", "bob"))):
            assert sites.call(site, service, "DELETE", path, token=client).status in (401, 404)
        deleted = sites.call("site1", service, "DELETE", path, token=OWNER, Cheops_Wait="all")
        assert deleted.status == 204
        assert deleted.headers["Cheops-Replicas"].count("status=OK") == 3
        assert "hers" not in json.dumps(sites.state(service))


def test_a_login_and_a_password_are_not_replicated(sites: TenantSites) -> None:
    service, password = "own-client", f"{MARK}-password"
    login = {"auth": {"user": "alice", "password": password}}
    answer = sites.call("site1", service, "POST", "/v3/auth/tokens", login, EVERYWHERE)
    assert answer.status == 422
    assert "'POST /**/auth/tokens' is never replicated" in answer.json["detail"]
    assert sites.call("site1", service, "POST", "/v3/auth/tokens", login).status == 201
    assert sites.call("site1", service, "POST", "/v3/auth/tokens", login, "site2").status == 201
    with_password = {"server": {"name": "x", "adminPass": password}}
    answer = sites.call("site1", service, "POST", "/servers", with_password, EVERYWHERE, OWNER)
    assert answer.status == 422
    assert "'$.server.adminPass', which is never written down" in answer.json["detail"]
    answer = sites.call("site1", service, "POST", f"/servers?password={password}", {}, EVERYWHERE, OWNER)
    assert answer.status == 422


def test_no_secret_is_in_any_file(sites: TenantSites) -> None:
    """The last of this module: the sites are stopped. Tokens, passwords of logins and adminPass of answers."""
    found: dict[str, Path] = {}
    for site in SITES:
        assert sites.rig.stop(site) == 0
        folder: Path = sites.rig.folder(site)
        files = [path for path in folder.rglob("*") if path.is_file() and folder / "auth" not in path.parents]
        assert any(b"hers" in path.read_bytes() for path in files)  # what was written down is looked at
        found |= {str(path): path for path in files if MARK.encode() in path.read_bytes()}
    assert not found

"""One request, executed where its scope says: at this site, at another, at the first that works."""

import json
from collections.abc import Iterator

import pytest
import yaml

from cheops.client import Agent
from cheops.gateway.request_log import KEPT, RequestLog, RequestTrace
from tests.agent.rig import until
from tests.gateway.raw import Upstream, connected
from tests.gateway.service import Service
from tests.gateway.stage import Stage, both_planes
from tests.support.command import run_process

SITES = ("site1", "site2", "site3")
plane = both_planes


@pytest.fixture(scope="module")
def three(tmp_path_factory: pytest.TempPathFactory, plane: str) -> Iterator[Stage]:
    stage = Stage(tmp_path_factory.mktemp("sharing") / "rig", SITES, ("image", "compute", "closed"), plane=plane)
    for site in SITES:  # `closed` is the same instance as `image`, to which no credentials are forwarded
        path = stage.rig.folder(site) / "site.yaml"
        config = yaml.safe_load(path.read_text())
        config["services"]["closed"] |= {"url": config["services"]["image"]["url"], "forward": "none"}
        config["services"]["compute"]["errors"] = "openstack"
        path.write_text(yaml.safe_dump(config))
    try:
        stage.rig.start()
        until(lambda: all_up(stage), "for the sites to see each other")
        yield stage
    finally:
        stage.rig.close()


def all_up(stage: Stage) -> bool:
    dry = {"Cheops-Dry-Run": "1"}
    scope = " ; ".join(stage.sites)
    told = [stage.ask(site, scope=scope, headers=dry) for site in stage.sites]
    return all(
        answer.status == 200 and all(one["up"] and one["rtt_ms"] is not None for one in answer.json["sites"])
        for answer in told
    )


Services = dict[str, Service]


@pytest.fixture
def images(three: Stage) -> Iterator[Services]:
    services = {site: Service(f"image of {site}", three.own(site)) for site in SITES}
    yield services
    for service in services.values():
        service.close()


def test_without_a_scope_it_stays_here(three: Stage, images: Services) -> None:
    answer = three.ask("site2", "/v2/images?x=1")
    assert answer.json["served_by"] == "image of site2"
    assert answer.json["path"] == "/v2/images?x=1"
    assert answer.site == "site2"
    assert "Scope" not in answer.json["headers"]
    assert not images["site1"].seen


@pytest.mark.parametrize("scope", ["{image: site3}", "image: site3", "site3", "{compute: site1, image: site3}"])
def test_sharing(scope: str, three: Stage, images: Services) -> None:
    answer = three.ask("site1", "/x", scope, method="POST", body=b"some body")
    assert (answer.json["served_by"], answer.site) == ("image of site3", "site3")
    assert images["site3"].seen[-1].body == b"some body"
    assert not images["site1"].seen


def test_what_the_other_site_gets(three: Stage, images: Services) -> None:
    three.ask("site1", "/x", "site3", headers={"Host": "images.example", "Authorization": "secret", "X-Mine": "1"})
    headers = images["site3"].seen[-1].headers
    assert headers["Scope"] == "{image: site3}"  # written out, so that it cannot come to mean another service
    assert headers["Host"] == "images.example"
    assert headers["X-Mine"] == "1"
    assert ", ".join(headers.get_all("X-Forwarded-For", [])) == "127.0.0.1, 127.0.0.1"
    assert not [name for name in headers if name.lower().startswith("cheops")]
    assert headers["Authorization"] == "secret"


@pytest.mark.parametrize("name", ["Cookie", "X-Auth-Token", "x_auth_token"])
def test_credentials_that_are_not_forwarded(three: Stage, images: Services, name: str) -> None:
    for _ in range(3):  # by the agent, and then as a flow
        answer = three.ask("site1", "/", "site3", service="closed", headers={name: "secret"})
        assert answer.headers["Cheops-Credentials"] == "dropped"
        assert "secret" not in images["site3"].seen[-1].headers.values()
        assert three.ask("site1", "/", "site3", service="closed").headers["Cheops-Credentials"] is None
        assert three.ask("site1", "/", "site3", headers={name: "secret"}).headers["Cheops-Credentials"] is None
        assert images["site3"].seen[-1].headers[name] == "secret"
    three.ask("site1", "/", service="closed", headers={name: "secret"})
    assert images["site1"].seen[-1].headers[name] == "secret"


def test_a_scope_for_another_service_leaves_this_one_here(three: Stage, images: Services) -> None:
    answer = three.ask("site1", scope="{compute: site2}")
    assert answer.json["served_by"] == "image of site1"
    assert answer.json["headers"]["Scope"] == "{compute: site2}"
    assert images["site1"].seen


def test_an_empty_scope_moves_nothing(three: Stage, images: Services) -> None:
    assert three.ask("site1", scope=" ").json["served_by"] == "image of site1"
    assert images["site1"].seen


@pytest.mark.parametrize(
    ("scope", "status", "said"),
    [
        ("{image: site9}", 400, "Known sites: site1, site2, site3"),
        ("{imag: site1}", 400, "Did you mean 'image'?"),
        ("{image: site1 &}", 400, "^"),
        ("{image: strong(site1 & site2) % site3}", 501, "the level 'strong' is not implemented yet"),
    ],
)
def test_what_cannot_be_done_is_said(scope: str, status: int, said: str, three: Stage) -> None:
    answer = three.ask("site1", scope=scope)
    assert answer.status == status
    assert answer.headers["Content-Type"] == "application/problem+json"
    assert said in answer.json["detail"]


def test_errors_have_the_shape_that_the_clients_of_a_service_expect(three: Stage) -> None:
    answer = three.ask("site1", service="compute", scope="{compute: site9}")
    assert (answer.status, answer.headers["Content-Type"]) == (400, "application/json")
    assert answer.headers["Cheops-Effect"] == "none"
    assert answer.json["error"]["code"] == 400
    assert "Known sites: site1, site2, site3" in answer.json["error"]["message"]


def test_a_request_has_one_scope(three: Stage) -> None:
    with connected(three.address("site1")) as client:
        client.send("GET / HTTP/1.1", "Host: h", "Scope: site1", "Scope: site2")
        answer = client.head()
        assert answer.status == 400
        assert "given 2 times" in json.loads(client.body(answer))["detail"]


# -- otherwise ---------------------------------------------------------------------------------------------


def test_the_first_that_works_serves(three: Stage, images: Services) -> None:
    answer = three.ask("site1", scope="site2 ; site3")
    assert (answer.json["served_by"], answer.headers["Cheops-Fallback"]) == ("image of site2", None)
    images.pop("site2").close()
    answer = three.ask("site1", scope="site2 ; site3")
    assert (answer.json["served_by"], answer.site) == ("image of site3", "site3")
    assert answer.headers["Cheops-Fallback"] == "site2: 502"


def test_what_certainly_did_nothing_is_tried_elsewhere_whatever_the_method(three: Stage, images: Services) -> None:
    """The other gateway knows that its service was not reached, and says so."""
    images.pop("site2").close()
    answer = three.ask("site1", scope="site2 ; site1", method="POST", body=b"a body")
    assert (answer.status, answer.site) == (200, "site1")
    assert images["site1"].seen[-1].body == b"a body"


def test_the_local_service_may_be_the_one_that_fails(three: Stage, images: Services) -> None:
    images.pop("site1").close()
    answer = three.ask("site1", scope="site1 ; site2", method="POST", body=b"a body")
    assert answer.headers["Cheops-Fallback"] == "site1: connection refused"
    assert images["site2"].seen[-1].body == b"a body"


@pytest.mark.parametrize("status", [502, 503, 504])
def test_a_read_falls_back_on_these(status: int, three: Stage, images: Services) -> None:
    images["site1"].answering = lambda _seen: (status, {})
    answer = three.ask("site1", scope="site1 ; site2")
    assert (answer.status, answer.site) == (200, "site2")
    assert answer.headers["Cheops-Fallback"] == f"site1: {status}"


@pytest.mark.parametrize("status", [400, 404, 409, 500])
def test_and_not_on_what_is_an_answer(status: int, three: Stage, images: Services) -> None:
    images["site1"].answering = lambda _seen: (status, {})
    answer = three.ask("site1", scope="site1 ; site2")
    assert (answer.status, answer.site) == (status, "site1")
    assert not images["site2"].seen


def test_what_may_have_had_an_effect_is_not_done_again(three: Stage, images: Services) -> None:
    images["site1"].answering = lambda _seen: (502, {})
    answer = three.ask("site1", scope="site1 ; site2", method="POST", body=b"pay")
    assert (answer.status, answer.site) == (502, "site1")
    assert not images["site2"].seen


def test_unless_its_sender_says_that_it_may_be(three: Stage, images: Services) -> None:
    images["site1"].answering = lambda _seen: (502, {})
    key = {"Idempotency-Key": "k1"}
    answer = three.ask("site1", scope="site1 ; site2", method="POST", body=b"pay", headers=key)
    assert (answer.status, answer.site) == (200, "site2")
    assert images["site2"].seen[-1].body == b"pay"


def test_a_post_that_was_refused_for_now_is_tried_elsewhere(three: Stage, images: Services) -> None:
    images["site1"].answering = lambda _seen: (503, {})
    answer = three.ask("site1", scope="site1 ; site2", method="POST", body=b"pay")
    assert (answer.status, answer.site) == (200, "site2")


def test_a_connection_that_breaks_after_a_post_is_not_followed_by_another(three: Stage, images: Services) -> None:
    images.pop("site1").close()
    broken = Upstream(three.own("site1"))
    with connected(three.address("site1")) as client:
        client.send("POST / HTTP/1.1", "Host: h", "Scope: site1 ; site2", "Content-Length: 0")
        service = broken.accept()
        service.head()
        service.close()
        answer = client.head()
        assert answer.status == 502
        assert "Idempotency-Key" in json.loads(client.body(answer))["detail"]
    broken.close()
    assert not images["site2"].seen


def test_a_large_body_goes_elsewhere_if_nothing_of_it_was_sent(three: Stage, images: Services) -> None:
    images.pop("site1").close()
    body = b"x" * 1_000_000
    answer = three.ask("site1", scope="site1 ; site2", method="PUT", body=body)
    assert (answer.status, answer.site) == (200, "site2")
    assert images["site2"].seen[-1].body == body


def test_and_not_if_it_was(three: Stage, images: Services) -> None:
    images["site1"].answering = lambda _seen: (503, {})
    answer = three.ask("site1", scope="site1 ; site2", method="PUT", body=b"x" * 1_000_000)
    assert (answer.status, answer.site) == (503, "site1")
    assert not images["site2"].seen


def test_if_none_works_each_is_named(three: Stage, images: Services) -> None:
    for site in SITES:
        images.pop(site).close()
    answer = three.ask("site1", scope="site1 ; site2 ; site3")
    assert answer.status == 502
    assert answer.headers["Cheops-Fallback"] == "site1: connection refused, site2: 502"


def test_around_goes_to_the_nearest(three: Stage, images: Services) -> None:
    answer = three.ask("site1", scope="around(site2, 10s)")
    assert answer.site == "site2"
    images.pop("site2").close()
    answer = three.ask("site1", scope="around(site2, 10s)")
    assert answer.site in {"site1", "site3"}
    assert answer.headers["Cheops-Fallback"] == "site2: 502"


# -- looking before leaping --------------------------------------------------------------------------------


def test_a_dry_run_says_what_would_happen_and_does_nothing(three: Stage, images: Services) -> None:
    headers = {"Cheops-Dry-Run": "1"}
    answer = three.ask("site1", "/x", "{image: site2 ; site1}", method="DELETE", headers=headers)
    told = answer.json
    assert (answer.status, told["dry_run"], told["decision"]) == (200, True, "in-turn")
    assert told["scope"] == "{image: site2 ; site1}"
    assert told["effect"]["sites"] == ["site2"]
    assert told["effect"]["does"] == "is sent to site2; if that fails: site1"
    assert [one["site"] for one in told["sites"]] == ["site2", "site1"]
    assert not any(service.seen for service in images.values())


def test_a_dry_run_without_a_scope(three: Stage, images: Services) -> None:
    told = three.ask("site1", headers={"Cheops-Dry-Run": "1"}).json
    assert (told["decision"], told["effect"]["does"]) == ("local", "is served here")
    assert not images["site1"].seen


# -- a site that is gone -----------------------------------------------------------------------------------


def test_a_site_that_is_down(tmp_path_factory: pytest.TempPathFactory, plane: str) -> None:
    """Site3 is a peer in the configuration, and never was there; site2 has no service `compute`."""
    stage = Stage(tmp_path_factory.mktemp("down") / "rig", SITES, ("image", "compute"), plane=plane)
    path = stage.rig.folder("site2") / "site.yaml"
    config = yaml.safe_load(path.read_text())
    del config["services"]["compute"]
    path.write_text(yaml.safe_dump(config))
    try:
        stage.rig.start("site1", "site2")
        until(lambda: _is_up(stage, "site2"), "for site1 to see site2")
        service = Service("image of site1", stage.own("site1"))
        _never_heard_of(stage)
        _known_and_without_the_service(stage)
        stage.rig.kill("site2")
        answer = stage.ask("site1", scope="site2")  # before anybody has noticed
        assert answer.status == 502
        assert "connection refused" in answer.json["detail"]
        assert stage.ask("site1", scope="site2 ; site1").headers["Cheops-Fallback"] == "site2: connection refused"

        def is_noticed() -> bool:
            return "is down: last seen" in str(stage.ask("site1", scope="site2").json["detail"])

        until(is_noticed, "for the site to be down")
        assert stage.ask("site1", scope="site2").status == 503
        answer = stage.ask("site1", scope="site2 ; site1")  # what is down is tried last
        assert (answer.site, answer.headers["Cheops-Fallback"]) == ("site1", None)
        service.close()
    finally:
        stage.rig.close()


def _is_up(stage: Stage, site: str) -> bool:
    found = json.loads(stage.rig.request("site1", "GET", "/api/v1/sites"))["sites"]
    return any(one["name"] == site and one["state"] == "up" for one in found)


def _never_heard_of(stage: Stage) -> None:
    answer = stage.ask("site1", scope="site3")
    assert answer.status == 503
    assert "site3 is down: it was never seen; see 'cheops describe site site3'" in answer.json["detail"]
    assert answer.headers["Cheops-Effect"] == "none"
    answer = stage.ask("site1", scope="site3 ; site1", method="POST", body=b"{}")
    assert (answer.status, answer.site) == (200, "site1")
    answer = stage.ask("site1", "/named", "site1 & site3", method="PUT", body=b"{}")  # it gets it when it is there
    assert answer.headers["Cheops-Replicas"] == "site1; status=OK, site3; status=PENDING"
    answer = stage.ask("site1", scope="site9")
    assert (answer.status, "unknown site 'site9'" in answer.json["detail"]) == (400, True)


def _known_and_without_the_service(stage: Stage) -> None:
    for scope in ("site2", "site2 ; site1", "site1 & site2"):
        answer = stage.ask("site1", scope=scope, service="compute", method="POST", body=b"{}")
        assert answer.status == 400, scope
        assert "site 'site2' has no service 'compute'" in answer.json["detail"]


def test_a_site_cannot_be_impersonated_from_anywhere(three: Stage, images: Services) -> None:
    """Only a known site's gateway may say that a request was forwarded: here all sites are on this machine,
    so the name must be of one of them."""
    with connected(three.address("site1")) as client:
        client.send("GET / HTTP/1.1", "Host: h", "Scope: site2", "Cheops-Hop: nobody")
        answer = client.head()
        assert answer["Cheops-Site"] == "site2"
    assert images["site2"].seen


def test_a_request_that_goes_in_circles_is_stopped(three: Stage) -> None:
    with connected(three.address("site1")) as client:
        client.send("GET / HTTP/1.1", "Host: h", "Scope: site2", "Cheops-Hop: nobody", "Via: 1.1 cheops-site1")
        assert client.head().status == 508


def test_what_happened_is_counted(three: Stage, images: Services) -> None:
    three.ask("site1", scope="site2")
    text = three.rig.request("site1", "GET", "/metrics").decode()
    assert 'cheops_gateway_requests_total{service="image",route="forward",status="2xx"}' in text
    assert images["site2"].seen


# -- what was served ---------------------------------------------------------------------------------------


def test_an_agent_tells_which_requests_with_a_scope_were_served_and_by_whom(three: Stage, images: Services) -> None:
    agent = Agent(three.rig.url("site2"))
    three.ask("site2", "/told/before")  # without a scope: counted, and not remembered
    first = next(agent.all_requests(), None)
    number = first.number if first else 0
    images["site3"].answering = lambda _seen: (503, {})
    three.ask("site2", "/told/local", "site2")
    three.ask("site2", "/told/far?token=secret", "{image: site1}", method="PUT", body=b"x")
    three.ask("site2", "/told/turn", "site3 ; site1")
    three.ask("site2", "/told/refused", "site9")
    three.ask("site2", "/told/dry", "site1", headers={"Cheops-Dry-Run": "1"})
    until(lambda: next(agent.all_requests()).number == number + 5, "for the last one to be remembered")
    found = list(agent.all_requests("image"))[:5]
    told = [(one.method, one.path, one.route, one.site, one.status, one.fallback) for one in found]
    assert told[::-1] == [
        ("GET", "/told/local", "local", "site2", 200, ""),
        ("PUT", "/told/far", "forward", "site1", 200, ""),
        ("GET", "/told/turn", "in-turn", "site1", 200, "site3: 503"),
        ("GET", "/told/refused", "refused", "site2", 400, ""),
        ("GET", "/told/dry", "dry-run", "site2", 200, ""),
    ]
    assert [one.scope for one in found][:2] == ["{image: site1}", "{image: site9}"]
    assert all(one.took_ms > 0 for one in found)
    assert "secret" not in str(list(agent.all_requests()))

    page = json.loads(three.rig.request("site2", "GET", "/api/v1/requests?limit=2"))
    assert ([one["path"] for one in page["requests"]], page["next"]) == (
        ["/told/dry", "/told/refused"], str(number + 4)
    )  # fmt: skip
    older = json.loads(three.rig.request("site2", "GET", f"/api/v1/requests?limit=2&cursor={page['next']}"))
    assert [one["path"] for one in older["requests"]] == ["/told/turn", "/told/far"]
    assert list(agent.all_requests("compute")) == []
    shown = run_process("get", "requests", "--service", "image", "--url", agent.url).out.splitlines()
    assert shown[0].split() == ["AT", "SERVICE", "REQUEST", "ROUTE", "SITE", "STATUS", "TOOK"]
    assert shown[4].split()[2:8] == ["image", "PUT", "/told/far", "forward", "site1", "200"]


def test_what_is_remembered_is_bounded() -> None:
    record, long = RequestLog(), "x" * 10_000
    for _ in range(KEPT + 7):
        story = RequestTrace("image", long, f"/{long}?{long}", scope=long, fallback=long)
        record.served(story.served_request())
    found = record.latest(10 * KEPT)
    assert (len(found), found[0].number, found[-1].number) == (KEPT, KEPT + 7, 8)
    one = found[0]
    assert max(map(len, (one.method, one.path, one.scope, one.fallback))) == 500

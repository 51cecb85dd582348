"""The application's own calls: through an address per service or through the proxy, with the scope that the
request had which made it call.
"""

import http.client
import json
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from tests.agent.rig import until
from tests.gateway.raw import connected
from tests.gateway.service import Service, calling
from tests.gateway.stage import Stage, both_planes
from tests.gateway.test_sharing import all_up

SITES = ("site1", "site2")
TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"


plane = both_planes


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory, plane: str) -> Iterator[Stage]:
    stage = Stage(
        tmp_path_factory.mktemp("outbound") / "rig",
        SITES,
        ("image", "compute"),
        outbound=True,
        plane=plane,
        carriers=["X-Request-Id", "traceparent", "baggage"],
    )
    images = [Service(f"image of {site}", stage.own(site)) for site in SITES]
    try:
        stage.rig.start()
        until(lambda: all_up(stage), "for the sites to see each other")
        yield stage
    finally:
        stage.rig.close()
        for one in images:
            one.close()


@pytest.fixture
def compute(two: Stage) -> Iterator[Service]:
    """Compute at site1 asks the image service, and passes on nothing at all unless a test has it do so."""
    service = Service("compute of site1", two.own("site1", "compute"))
    yield service
    service.close()


def passing_on(two: Stage, compute: Service, *names: str) -> None:
    compute.answering = calling(two.address("site1", "image", "outbound"), names)


def ask(two: Stage, scope: str | None, headers: dict[str, str] | None = None) -> dict[str, Any]:
    """What compute at site1 was told by the image service that it called."""
    answer = two.ask("site1", "/img", scope, service="compute", headers=headers)
    assert answer.status == 200
    told: dict[str, Any] = answer.json["called"]
    return told


def header(told: dict[str, Any], name: str) -> str | None:
    """What the service got; HAProxy writes names in small letters."""
    return next((value for given, value in told["headers"].items() if given.lower() == name.lower()), None)


SHARED = "{compute: site1, image: site2}"


def test_an_application_that_passes_the_scope_on(two: Stage, compute: Service) -> None:
    passing_on(two, compute, "scope")
    assert ask(two, SHARED)["served_by"] == "image of site2"
    assert ask(two, None)["served_by"] == "image of site1"


@pytest.mark.parametrize(
    "given",
    [
        {"X-Request-Id": "r1"},
        {"traceparent": f"00-{TRACE}-00f067aa0ba902b7-01"},
        {"baggage": "user=1,cheops=abc;x=y"},
        {},
    ],
)
def test_a_scope_is_recovered_from_what_the_application_passes_on(
    given: dict[str, str], two: Stage, compute: Service
) -> None:
    """Also where the client sends nothing of the kind: then the gateway adds a carrier."""
    passing_on(two, compute, "x-request-id", "traceparent", "baggage")
    told = ask(two, SHARED, given)
    assert told["served_by"] == "image of site2"
    assert header(told, "Scope") == SHARED


def test_a_scope_is_recovered_where_another_site_sent_the_request_on(two: Stage, compute: Service) -> None:
    """It has no carrier, so the gateway that has the instance adds one."""
    passing_on(two, compute, "x-request-id")
    told = two.ask("site2", "/img", SHARED, service="compute").json["called"]
    assert (told["served_by"], header(told, "Scope")) == ("image of site2", SHARED)


@pytest.mark.parametrize("passed", ["scope", "x-request-id"])
@pytest.mark.parametrize(
    ("scope", "images"),
    [
        ("{compute: site1 & site2, image: site2}", ("image of site2", "image of site2")),
        ("{compute: site1 & site2}", ("image of site1", "image of site2")),
    ],
)
def test_a_scope_follows_the_calls_of_a_replicated_request_at_every_site(
    passed: str, scope: str, images: tuple[str, str], two: Stage, compute: Service
) -> None:
    """Each site creates its own server, from images of where the scope says; none of what it asks for is
    replicated once more."""
    other = Service("compute of site2", two.own("site2", "compute"))
    called: dict[str, dict[str, Any]] = {}

    def answering(site: str) -> Any:
        ask_for_image = calling(two.address(site, "image", "outbound"), (passed,))

        def answer(seen: Any) -> tuple[int, dict[str, Any]]:
            called[site] = ask_for_image(seen)[1]["called"]
            return 201, {"id": 1}

        return answer

    try:
        compute.answering, other.answering = answering("site1"), answering("site2")
        made = two.ask(
            "site1", "/servers", scope, service="compute", method="POST", body=b"{}", headers={"Cheops-Wait": "all"}
        )  # fmt: skip
        assert (made.status, made.headers["Cheops-Replicas"].count("=OK")) == (201, 2), made.body
        assert (called["site1"]["served_by"], called["site2"]["served_by"]) == images
        scopes = [header(one, "Scope") for one in called.values()]
        assert scopes == (["{image: site2}"] * 2 if "image" in scope else [None, None])
    finally:
        other.close()


def test_a_new_span_of_the_same_trace_is_the_same_request(two: Stage, compute: Service) -> None:
    trace = "0af7651916cd43dd8448eb211c80319c"

    def answering(seen: Any) -> tuple[int, dict[str, Any]]:
        assert trace in seen.headers["Traceparent"]
        return called(two, {"traceparent": f"00-{trace}-b7ad6b7169203331-00"})

    compute.answering = answering
    told = ask(two, SHARED, {"Traceparent": f"00-{trace}-00f067aa0ba902b7-01"})
    assert told["served_by"] == "image of site2"


def called(two: Stage, headers: dict[str, str]) -> tuple[int, dict[str, Any]]:
    answer = two.ask("site1", "/img", headers=headers, way="outbound")
    return 200, {"called": {"status": answer.status, **answer.json}}


def test_an_unknown_value_means_nothing(two: Stage, compute: Service) -> None:
    compute.answering = lambda _seen: called(two, {"X-Request-Id": "never seen"})
    assert ask(two, SHARED)["served_by"] == "image of site1"


def test_a_value_with_two_scopes_at_once_is_not_guessed(two: Stage, compute: Service) -> None:
    """Two clients use the same request id for different scopes, and both are under way."""
    both_here, go_on = threading.Barrier(3), threading.Event()

    def answering(seen: Any) -> tuple[int, dict[str, Any]]:
        both_here.wait(20)
        go_on.wait(20)
        return called(two, {"X-Request-Id": seen.headers["X-Request-Id"]})

    compute.answering = answering
    told: list[dict[str, Any]] = []
    threads = [
        threading.Thread(target=lambda s=scope: told.append(ask(two, s, {"X-Request-Id": "same"})))
        for scope in (SHARED, "{compute: site1, image: site1}")
    ]
    for thread in threads:
        thread.start()
    both_here.wait(20)
    go_on.set()
    for thread in threads:
        thread.join()
    assert [one["status"] for one in told] == [409, 409]
    assert "not clear" in told[0]["detail"]


def test_nor_is_one_that_a_request_without_a_scope_has_too(two: Stage, compute: Service) -> None:
    passing_on(two, compute, "x-request-id")
    assert ask(two, None, {"X-Request-Id": "shared id"})["served_by"] == "image of site1"
    assert ask(two, SHARED, {"X-Request-Id": "shared id"})["status"] == 409


def test_several_carriers_may_make_it_clear(two: Stage, compute: Service) -> None:
    """Two requests of one trace have different scopes; the request id tells them apart."""
    passing_on(two, compute, "x-request-id", "traceparent")
    trace = {"traceparent": "00-aaf7651916cd43dd8448eb211c80319c-00f067aa0ba902b7-01"}
    assert ask(two, SHARED, trace)["served_by"] == "image of site2"
    assert ask(two, "{compute: site1, image: site1}", trace)["served_by"] == "image of site1"


def test_the_proxy_knows_services_by_their_host_names(two: Stage, compute: Service) -> None:
    compute.answering = calling(two.address("site1", "", "proxy"), ("x-request-id",), proxied_host="image")
    told = ask(two, SHARED)
    assert (told["served_by"], told["path"]) == ("image of site2", "/img")
    assert header(told, "Host") == "image"
    assert ask(two, None)["served_by"] == "image of site1"


def test_the_proxy_leads_nowhere_else(two: Stage) -> None:
    with connected(two.address("site1", "", "proxy")) as client:
        client.send("GET http://imagge/x HTTP/1.1", "Host: imagge")
        answer = client.head()
        assert answer.status == 403
        detail = json.loads(client.body(answer))["detail"]
        assert "Did you mean 'image'?" in detail
        client.send("CONNECT image:443 HTTP/1.1", "Host: image:443")
        assert client.head().status == 501
    with connected(two.address("site1", "", "proxy")) as client:
        client.send("GET /x HTTP/1.1", "Host: h")
        assert client.head().status == 400


def test_many_requests_with_two_scopes_never_mix(two: Stage, compute: Service) -> None:
    """Over a few connections that are kept, each used for both scopes in turn."""
    passing_on(two, compute, "x-request-id")
    wrong: list[str] = []

    def converse(number: int) -> None:
        connection = http.client.HTTPConnection(*two.address("site1", "compute"), timeout=60)
        for turn in range(50):
            site = SITES[(number + turn) % 2]
            scope = f"{{compute: site1, image: {site}}}"
            connection.request("GET", f"/{number}/{turn}", headers={"Scope": scope})
            told = json.loads(connection.getresponse().read())["called"]
            if (told.get("served_by"), told.get("path")) != (f"image of {site}", f"/{number}/{turn}"):
                wrong.append(f"{scope} led to {told}")
        connection.close()

    threads = [threading.Thread(target=converse, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_recovered_scopes_are_counted(two: Stage, compute: Service) -> None:
    passing_on(two, compute, "x-request-id")
    ask(two, SHARED)
    text = two.rig.request("site1", "GET", "/metrics").decode()
    assert 'cheops_gateway_recovered_scopes_total{service="image"}' in text

"""Browsers: preflights allow Cheops' headers where the service allows the origin, and answers expose them."""

import pytest

from cheops.gateway.cors import EXPOSE_HEADER, for_service, is_preflight, preflight_answer, with_exposed
from cheops.gateway.headers import Headers, RequestHead, every
from tests.gateway.raw import Socket, Upstream
from tests.gateway.stage import both_planes

plane = both_planes
ORIGIN = "https://app.example"
PREFLIGHT = ("OPTIONS /things HTTP/1.1", "Host: h", f"Origin: {ORIGIN}", "Access-Control-Request-Method: PUT")


def preflight(asked: str) -> RequestHead:
    return RequestHead(
        "OPTIONS",
        "/",
        (("Origin", ORIGIN), ("Access-Control-Request-Method", "PUT"), ("Access-Control-Request-Headers", asked)),
    )


def test_only_what_a_browser_asks_before_is_a_preflight() -> None:
    head = preflight("scope")
    assert is_preflight(head)
    assert not is_preflight(RequestHead("GET", "/", head.headers))
    assert not is_preflight(RequestHead("OPTIONS", "/", head.headers[:1]))
    assert not is_preflight(RequestHead("OPTIONS", "/", head.headers[1:]))


@pytest.mark.parametrize(
    ("asked", "left"),
    [
        ("scope", []),
        ("content-type,scope, Cheops-Wait", ["content-type"]),
        ("content-type, x-scope", ["content-type, x-scope"]),
        ("cheops-hop", ["cheops-hop"]),  # only gateways may send it: nothing is allowed for it
    ],
)
def test_the_service_is_not_asked_about_headers_of_cheops(asked: str, left: list[str]) -> None:
    assert every(for_service(preflight(asked)), "Access-Control-Request-Headers") == left


@pytest.mark.parametrize(
    ("status", "headers", "is_allowed"),
    [
        (204, (("Access-Control-Allow-Origin", "*"),), True),
        (200, (("access-control-allow-origin", ORIGIN),), True),
        (200, (("Access-Control-Allow-Origin", "https://other.example"),), False),
        (200, (("Access-Control-Allow-Origin", "null"),), False),
        (200, (), False),
        (403, (("Access-Control-Allow-Origin", "*"),), False),
    ],
)
def test_nothing_is_allowed_that_the_service_does_not_allow(status: int, headers: Headers, is_allowed: bool) -> None:
    answer = preflight_answer(preflight("content-type, Scope, cheops-wait"), status, headers)
    added = (("Access-Control-Allow-Headers", "Scope, cheops-wait"),)
    assert answer == ((*headers, *added) if is_allowed else headers)
    assert preflight_answer(preflight("content-type"), status, headers) == headers


def test_headers_are_exposed_once_and_only_to_other_origins() -> None:
    shared: Headers = (("Access-Control-Allow-Origin", "*"),)
    assert with_exposed(()) == ()
    assert with_exposed(with_exposed(shared)) == (*shared, EXPOSE_HEADER)


def test_a_preflight_through_the_gateway(client: Socket, upstream: Upstream) -> None:
    client.send(*PREFLIGHT, "Access-Control-Request-Headers: content-type,scope")
    service = upstream.accept()
    assert service.head()["Access-Control-Request-Headers"] == "content-type"
    service.send(
        "HTTP/1.1 204 No Content",
        f"Access-Control-Allow-Origin: {ORIGIN}",
        "Access-Control-Allow-Headers: content-type",
        "Access-Control-Allow-Methods: PUT",
    )
    answer = client.head()
    assert answer.all("Access-Control-Allow-Headers") == ["content-type", "scope"]
    assert answer.all("Access-Control-Allow-Methods") == ["PUT"]


def test_a_page_of_another_origin_sees_which_site_served_it(client: Socket, upstream: Upstream) -> None:
    client.send("GET / HTTP/1.1", "Host: h", f"Origin: {ORIGIN}")
    service = upstream.accept()
    service.head()
    service.send("HTTP/1.1 200 OK", "Content-Length: 0", f"Access-Control-Allow-Origin: {ORIGIN}")
    answer = client.head()
    assert "Cheops-Site" in answer["Access-Control-Expose-Headers"]
    client.send("GET / HTTP/1.1", "Host: h")
    service.head()
    service.send("HTTP/1.1 200 OK", "Content-Length: 0")
    assert "Access-Control-Expose-Headers" not in client.head()

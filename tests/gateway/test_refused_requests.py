"""Requests that two programs could read differently: refused, the connection closed, nothing passed on."""

import json

import pytest

from tests.gateway.raw import Socket, Upstream, connected
from tests.gateway.stage import Stage, both_planes

plane = both_planes

HOST = b"Host: h\r\n"
SMUGGLED = b"GET /admin HTTP/1.1\r\nHost: h\r\n\r\n"


def post(*headers: bytes, body: bytes = b"") -> bytes:
    return b"POST / HTTP/1.1\r\n" + HOST + b"".join(one + b"\r\n" for one in headers) + b"\r\n" + body


@pytest.mark.parametrize(
    "said",
    [
        pytest.param(post(b"Content-Length: 3", b"Content-Length: 4", body=b"abcd"), id="two lengths"),
        pytest.param(post(b"Content-Length: 3, 4", body=b"abcd"), id="two lengths in one"),
        pytest.param(post(b"Content-Length: +3", body=b"abc"), id="a length with a sign"),
        pytest.param(post(b"Content-Length: 0x3", body=b"abc"), id="a hexadecimal length"),
        pytest.param(post(b"Content-Length: ", body=b"abc"), id="an empty length"),
        pytest.param(post(b"Content-Length: " + b"9" * 30, body=b"abc"), id="an absurd length"),
        pytest.param(
            post(b"Content-Length: 6", b"Transfer-Encoding: chunked", body=b"0\r\n\r\n" + SMUGGLED), id="CL.TE"
        ),
        pytest.param(post(b"Transfer-Encoding: chunked", b"Content-Length: 4", body=b"0\r\n\r\n"), id="TE.CL"),
        pytest.param(post(b"Transfer-Encoding: chunked, identity", body=b"0\r\n\r\n"), id="not chunked last"),
        pytest.param(post(b"Transfer-Encoding: gzip, chunked", body=b"0\r\n\r\n"), id="more than chunked"),
        pytest.param(post(b"Transfer-Encoding: xchunked", body=b"0\r\n\r\n"), id="nearly chunked"),
        pytest.param(
            post(b"Transfer-Encoding: chunked", b"Transfer-Encoding: identity", body=b"0\r\n\r\n"), id="TE.TE"
        ),
        pytest.param(post(b"Transfer-Encoding : chunked", body=b"0\r\n\r\n"), id="a blank before the colon"),
        pytest.param(post(b"Transfer_Encoding: chunked", body=b"0\r\n\r\n"), id="an underscore for a hyphen"),
        pytest.param(post(b"Content_Length: 5", body=b"12345"), id="an underscored length"),
        pytest.param(post(b"X: a", b" folded: b"), id="a folded header"),
        pytest.param(post(b"X: a", b"\tTransfer-Encoding: chunked"), id="a header folded with a tab"),
        pytest.param(post(b"X: a\x00b"), id="a null character"),
        pytest.param(post(b"X: a\x0bb"), id="a control character"),
        pytest.param(post(b"X: a\x7fb"), id="a delete character"),
        pytest.param(post(b"X: a\rTransfer-Encoding: chunked"), id="a lone carriage return"),
        pytest.param(b"POST / HTTP/1.1\r\n" + HOST + b"X: a\nY: b\r\n\r\n", id="a lone line feed"),
        pytest.param(b"GET / HTTP/1.1\nHost: h\n\n", id="line feeds only"),
        pytest.param(b"GET / HTTP/1.1\r\n\r\n", id="no Host"),
        pytest.param(b"GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n", id="two Hosts"),
        pytest.param(b"GET / HTTP/1.1\r\nHost: a b\r\n\r\n", id="a Host that is none"),
        pytest.param(b"GET  / HTTP/1.1\r\n" + HOST + b"\r\n", id="two blanks in the first line"),
        pytest.param(b"GET / HTTP/1.1 \r\n" + HOST + b"\r\n", id="a blank after the version"),
        pytest.param(b"GET /a b HTTP/1.1\r\n" + HOST + b"\r\n", id="a blank in the target"),
        pytest.param(b"GET /\xff HTTP/1.1\r\n" + HOST + b"\r\n", id="a byte that no target has"),
        pytest.param(b"GET ftp://h/ HTTP/1.1\r\n" + HOST + b"\r\n", id="another scheme"),
        pytest.param(b"G@T / HTTP/1.1\r\n" + HOST + b"\r\n", id="a method that is none"),
        pytest.param(b"\x16\x03\x01\x02\x00\x01\x00", id="TLS"),
        pytest.param(post(b"na me: x"), id="a blank in a name"),
        pytest.param(post(b": x"), id="no name"),
        pytest.param(post(b"no colon"), id="no colon"),
        pytest.param(post(b"Connection: close, Content-Length", b"Content-Length: 3", body=b"abc"), id="hidden length"),
        pytest.param(post(b"Connection: Host", body=b""), id="hidden host"),
        pytest.param(
            b"POST / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", id="chunks in HTTP/1.0"
        ),
    ],
)  # fmt: skip
def test_it_is_refused_and_nothing_reaches_the_service(
    said: bytes, request: pytest.FixtureRequest, plane: str, client: Socket, upstream: Upstream
) -> None:
    client.raw(said)
    if plane == "haproxy" and request.node.callspec.id.removeprefix("haproxy-") in MADE_PLAIN:
        assert is_made_plain(upstream.accept())
        return
    answer = client.head()
    assert answer.status in ({400} if plane == "builtin" else {400, 422})
    if answer.status == 400:
        assert answer["Connection"].lower() == "close"
    body = client.body(answer)
    if plane == "builtin":  # HAProxy has words of its own for what it cannot parse
        problem = json.loads(body)
        assert problem["status"] == 400
        assert problem["detail"]
    assert client.rest() == b""
    assert nothing_came(upstream)


# What HAProxy understands in one way, and passes on in no other: the next program sees one request, one length.
MADE_PLAIN = {
    "CL.TE", "TE.CL", "a folded header", "a header folded with a tab", "a lone line feed", "line feeds only",
    "two blanks in the first line",
}  # fmt: skip


def is_made_plain(service: Socket) -> bool:
    head = service.head()
    raw = head.raw.replace(b"\r\n", b"")
    is_one_request = not (b"\r" in raw or b"\n" in raw) and len(head.first.split(" ")) == 3
    return is_one_request and len(head.all("Content-Length") + head.all("Transfer-Encoding")) <= 1


def nothing_came(upstream: Upstream) -> bool:
    upstream.listener.setblocking(False)
    try:
        upstream.accept()
    except BlockingIOError:
        return True
    return False


@pytest.mark.parametrize(
    "chunks",
    [
        pytest.param(b"x\r\nabc\r\n", id="no number"),
        pytest.param(b"-3\r\nabc\r\n", id="a sign"),
        pytest.param(b"0x3\r\nabc\r\n", id="a prefix"),
        pytest.param(b"3\r\nabcdef\r\n", id="more than it says"),
        pytest.param(b"3\nabc\n0\n\n" + b"z" * 70_000, id="line feeds only"),
        pytest.param(b"1" * 30 + b"\r\nabc\r\n", id="an absurd size"),
        pytest.param(b"3;" + b"e" * 70_000, id="an endless extension"),
        pytest.param(b"0\r\nContent-Length: 5\r\n\r\n", id="a length as a trailer"),
        pytest.param(b"0\r\nX: a\x01b\r\n\r\n", id="a control character in a trailer"),
    ],
)
def test_bad_chunks_end_the_request_on_both_sides(
    chunks: bytes, plane: str, client: Socket, upstream: Upstream
) -> None:
    client.raw(post(b"Transfer-Encoding: chunked"))
    service = upstream.accept()
    service.head()
    client.raw(b"2\r\nok\r\n" + chunks)
    if plane == "haproxy" and chunks.startswith(b"3\n"):  # made plain: it ends where it was understood to
        assert service.until(b"0\r\n\r\n").endswith(b"abc\r\n0\r\n\r\n")
        service.send("HTTP/1.1 200 OK", "Content-Length: 0")
        assert (client.head().status, client.head().status) == (200, 400)  # what follows is no request
        client.rest()
        return
    assert client.head().status == 400
    assert not service.rest().endswith(b"0\r\n\r\n")  # it never looks like a whole request
    client.rest()


@pytest.mark.parametrize("size", [33_000, 40_000, 60_000])
def test_a_head_that_is_too_large(size: int, client: Socket, upstream: Upstream) -> None:
    client.raw(b"GET / HTTP/1.1\r\n" + HOST + b"X: " + b"x" * size + b"\r\n\r\n")
    answer = client.head()
    assert (answer.status, answer["Content-Type"]) == (431, "application/problem+json")
    assert "larger than 32,768 bytes" in json.loads(client.body(answer))["detail"]
    assert client.is_closed
    assert nothing_came(upstream)


def test_a_head_that_is_just_small_enough_and_has_many_headers(client: Socket, upstream: Upstream) -> None:
    client.send("GET / HTTP/1.1", "Host: h", *(f"X-{number}: {'x' * 40}" for number in range(600)))
    service = upstream.accept()
    assert service.head()["X-599"] == "x" * 40
    service.send("HTTP/1.1 200 OK", "Content-Length: 0")
    assert client.head().status == 200


def test_another_version(plane: str, client: Socket) -> None:
    client.raw(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")
    assert client.head().status == (505 if plane == "builtin" else 400)


def test_a_tunnel_cannot_be_asked_for(client: Socket, upstream: Upstream) -> None:
    client.raw(b"CONNECT h:443 HTTP/1.1\r\n" + HOST + b"\r\n")
    assert client.head().status == 501
    assert nothing_came(upstream)


def test_one_bad_request_harms_no_other_client(one_site: Stage, client: Socket, upstream: Upstream) -> None:
    with connected(one_site.address("site1")) as bad:
        bad.raw(post(b"Content-Length: 3", b"Content-Length: 4"))
        bad.rest()
    client.send("GET / HTTP/1.1", "Host: h")
    service = upstream.accept()
    service.head()
    service.send("HTTP/1.1 200 OK", "Content-Length: 0")
    assert client.head().status == 200

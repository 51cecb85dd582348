"""HTTP/1.1 through the gateway, byte by byte: a raw client on one side, a raw service on the other."""

import json
import socket
import threading
from contextlib import suppress

import pytest

from tests.gateway.raw import Socket, Upstream, connected
from tests.gateway.stage import Stage, both_planes

plane = both_planes
KEY = "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ=="

GET = ("GET /things?a=1 HTTP/1.1", "Host: example.org")


def served(client: Socket, upstream: Upstream, *request: str) -> Socket:
    """The connection of the service on which a request arrives."""
    client.send(*(request or GET))
    return upstream.accept()


# -- bodies ------------------------------------------------------------------------------------------------


def test_a_request_and_its_answer_arrive_as_they_were_sent(plane: str, client: Socket, upstream: Upstream) -> None:
    service = served(client, upstream, *GET, "X-Odd-CASE: a  b", "Accept: */*", "Accept: x")
    head = service.head()
    assert head.first == "GET /things?a=1 HTTP/1.1"
    assert head["X-Odd-Case"] == "a  b"
    assert plane == "haproxy" or "X-Odd-CASE: a  b" in head.lines  # HAProxy writes names in small letters
    assert head.all("Accept") == ["*/*", "x"]
    assert head["Host"] == "example.org"
    service.send("HTTP/1.1 299 Quite Fine", "Content-Length: 5", "Set-Cookie: a", "Set-Cookie: b", body=b"hello")
    answer = client.head()
    assert answer.first == "HTTP/1.1 299 Quite Fine"
    assert answer.all("Set-Cookie") == ["a", "b"]
    assert client.body(answer) == b"hello"
    assert answer["Cheops-Site"] == "site1"


def test_a_body_with_a_length(client: Socket, upstream: Upstream) -> None:
    body = bytes(range(256)) * 1000
    client.send("POST / HTTP/1.1", "Host: h", f"Content-Length: {len(body)}")
    service = upstream.accept()
    head = service.head()
    assert head["Content-Length"] == str(len(body))
    assert "Transfer-Encoding" not in head
    client.raw(body)
    assert service.body(head) == body
    service.send("HTTP/1.1 200 OK", f"Content-Length: {len(body)}", body=body)
    assert client.body(client.head()) == body


def test_a_body_in_chunks_and_its_trailers(client: Socket, upstream: Upstream) -> None:
    service = served(client, upstream, "PUT / HTTP/1.1", "Host: h", "Transfer-Encoding: chunked", "Trailer: X-Sum")
    head = service.head()
    assert head.all("Transfer-Encoding") == ["chunked"]
    client.raw(b"3\r\nabc\r\n4;ext=1\r\ndefg\r\n0\r\nX-Sum: 7\r\n\r\n")
    assert service.until(b"\r\n\r\n").lower().endswith(b"\r\n0\r\nx-sum: 7\r\n\r\n")
    service.raw(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nhi\r\n0\r\nX-Done: yes\r\n\r\n")
    assert client.head()["Transfer-Encoding"] == "chunked"
    assert client.until(b"\r\n\r\n").lower() == b"2\r\nhi\r\n0\r\nx-done: yes\r\n\r\n"


def test_an_answer_that_only_its_end_delimits(client: Socket, upstream: Upstream) -> None:
    service = served(client, upstream)
    service.head()
    service.send("HTTP/1.0 200 OK", body=b"until the end")
    service.close()
    answer = client.head()  # to whom it is passed on in chunks, or to the end as well
    body = client.body(answer) if "Transfer-Encoding" in answer else client.rest()
    assert body == b"until the end"


def test_an_old_client_gets_no_chunks_and_the_connection_is_closed(client: Socket, upstream: Upstream) -> None:
    service = served(client, upstream, "GET / HTTP/1.0")
    assert service.head()["Host"]  # HTTP/1.1 to the service
    service.raw(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n")
    answer = client.head()
    assert "Transfer-Encoding" not in answer
    assert client.rest() == b"hello"


def test_pieces_of_an_answer_come_as_they_are_made(client: Socket, upstream: Upstream) -> None:
    """Server-sent events, for one."""
    service = served(client, upstream)
    service.head()
    service.send("HTTP/1.1 200 OK", "Content-Type: text/event-stream", "Transfer-Encoding: chunked")
    assert client.head()["Content-Type"] == "text/event-stream"
    for number in range(3):
        event = f"data: {number}\n\n".encode()
        service.raw(b"%x\r\n%s\r\n" % (len(event), event))
        assert client.until(b"\n\n\r\n").endswith(event + b"\r\n")


def test_the_service_may_answer_while_the_body_is_still_coming(client: Socket, upstream: Upstream) -> None:
    service = served(client, upstream, "POST /echo HTTP/1.1", "Host: h", "Transfer-Encoding: chunked")
    service.head()
    service.send("HTTP/1.1 200 OK", "Transfer-Encoding: chunked")
    client.head()
    for word in (b"one", b"two"):
        client.raw(b"3\r\n%s\r\n" % word)
        assert service.until(word).endswith(word)
        service.raw(b"3\r\n%s\r\n" % word)
        assert client.until(word).endswith(word)
    client.raw(b"0\r\n\r\n")
    service.until(b"0\r\n\r\n")
    service.raw(b"0\r\n\r\n")
    client.until(b"0\r\n\r\n")


def test_a_refusal_before_the_body_is_read_reaches_the_client(client: Socket, upstream: Upstream) -> None:
    size = 50_000_000
    service = served(client, upstream, "POST / HTTP/1.1", "Host: h", f"Content-Length: {size}")
    service.head()
    service.send("HTTP/1.1 413 Too Much", "Content-Length: 0", "Connection: close")
    client.raw(b"x" * 10_000)
    assert client.head().status == 413


@pytest.mark.parametrize("status", [204, 304])
def test_answers_without_a_body(status: int, client: Socket, upstream: Upstream) -> None:
    service = served(client, upstream)
    service.head()
    service.send(f"HTTP/1.1 {status} x", "ETag: e")
    answer = client.head()
    assert answer.status == status
    assert "Transfer-Encoding" not in answer
    client.send(*GET)  # the same connections serve on
    assert service.head().first == GET[0]


def test_head_says_how_long_a_body_would_be(client: Socket, upstream: Upstream) -> None:
    service = served(client, upstream, "HEAD / HTTP/1.1", "Host: h")
    assert service.head().first == "HEAD / HTTP/1.1"
    service.send("HTTP/1.1 200 OK", "Content-Length: 1234")
    answer = client.head()
    assert answer["Content-Length"] == "1234"
    client.send(*GET)
    assert service.head().first == GET[0]


# -- informational answers, upgrades -----------------------------------------------------------------------


def test_100_continue_is_the_services_to_give(client: Socket, upstream: Upstream) -> None:
    service = served(client, upstream, "POST / HTTP/1.1", "Host: h", "Content-Length: 4", "Expect: 100-continue")
    head = service.head()
    assert head["Expect"] == "100-continue"
    service.send("HTTP/1.1 100 Continue")
    assert client.head().status == 100
    client.raw(b"body")
    assert service.exactly(4) == b"body"
    service.send("HTTP/1.1 201 Created", "Content-Length: 0")
    assert client.head().status == 201


def test_a_final_answer_instead_of_100(plane: str, client: Socket, upstream: Upstream) -> None:
    service = served(client, upstream, "POST / HTTP/1.1", "Host: h", "Content-Length: 4", "Expect: 100-continue")
    service.head()
    service.send("HTTP/1.1 401 No", "Content-Length: 0")
    answer = client.head()
    assert answer.status == 401
    if plane == "builtin":
        assert answer["Connection"] == "close"  # nobody knows whether the body still comes, or the next request
        assert client.is_closed
    else:
        client.raw(b"body")  # it is taken for that, and for nothing else
        assert service.exactly(4) == b"body"
        client.send(*GET)
        assert service.head().first == GET[0]


def test_other_informational_answers_are_passed_on(client: Socket, upstream: Upstream) -> None:
    service = served(client, upstream)
    service.head()
    service.send("HTTP/1.1 103 Early Hints", "Link: </style.css>; rel=preload")
    service.send("HTTP/1.1 102 Processing")
    service.send("HTTP/1.1 200 OK", "Content-Length: 0")
    hints = client.head()
    assert (hints.status, hints["Link"]) == (103, "</style.css>; rel=preload")
    assert client.head().status == 102
    assert client.head().status == 200


def test_an_upgrade_becomes_a_tunnel_both_ways(client: Socket, upstream: Upstream) -> None:
    upgrade = ("Connection: keep-alive, Upgrade", "Upgrade: websocket", KEY)
    service = served(client, upstream, *GET, *upgrade)
    head = service.head()
    assert head["Upgrade"] == "websocket"
    assert head["Connection"].lower() == "upgrade"
    assert head["Sec-WebSocket-Key"] in KEY
    switching = (
        "HTTP/1.1 101 Switching",
        "Connection: Upgrade",
        "Upgrade: websocket",
        "Sec-WebSocket-Accept: x",
    )
    service.send(*switching, body=b"first")
    answer = client.head()
    assert (answer.status, answer["Upgrade"], answer["Sec-WebSocket-Accept"]) == (101, "websocket", "x")
    assert client.exactly(5) == b"first"
    client.raw(b"\x81\x00any bytes\r\n\r\n")
    assert service.exactly(15) == b"\x81\x00any bytes\r\n\r\n"
    service.raw(b"\xff" * 100_000)
    assert client.exactly(100_000) == b"\xff" * 100_000
    client.socket.shutdown(socket.SHUT_WR)
    assert service.is_closed
    service.raw(b"last words")
    service.close()
    assert client.rest() == b"last words"


def test_an_upgrade_that_is_refused_is_an_ordinary_answer(plane: str, client: Socket, upstream: Upstream) -> None:
    service = served(client, upstream, *GET, "Connection: Upgrade", "Upgrade: websocket", KEY)
    service.head()
    service.send("HTTP/1.1 400 No", "Content-Length: 2", body=b"no")
    assert client.body(client.head()) == b"no"
    client.send(*GET)
    other = service if plane == "builtin" else upstream.accept()  # that was the agent's, this is HAProxy's
    assert other.head().first == GET[0]


def test_http2_is_not_smuggled_through(client: Socket, upstream: Upstream) -> None:
    upgrade = ("Connection: Upgrade, HTTP2-Settings", "Upgrade: h2c", "HTTP2-Settings: AAMA")
    head = served(client, upstream, *GET, *upgrade).head()
    assert not [name for name in ("Upgrade", "Connection", "HTTP2-Settings") if name in head]


# -- connections -------------------------------------------------------------------------------------------


def test_connections_are_kept_on_both_sides(client: Socket, upstream: Upstream) -> None:
    service = served(client, upstream)
    for number in range(3):
        if number:
            client.send(*GET)
        service.head()
        service.send("HTTP/1.1 200 OK", "Content-Length: 2", body=b"%02d" % number)
        assert client.body(client.head()) == b"%02d" % number
    assert len(upstream.accepted) == 1


def test_requests_that_come_at_once_are_answered_in_their_order(client: Socket, upstream: Upstream) -> None:
    lines = [(f"POST /{n} HTTP/1.1", "Host: h", "Content-Length: 3") for n in range(5)]
    client.raw(b"".join("\r\n".join([*one, "", ""]).encode() + b"abc" for one in lines))
    service = upstream.accept()
    for number in range(5):
        head = service.head()
        assert head.first == f"POST /{number} HTTP/1.1"
        assert service.body(head) == b"abc"
        service.send("HTTP/1.1 200 OK", "Content-Length: 1", body=str(number).encode())
    assert [client.body(client.head()) for _ in range(5)] == [b"0", b"1", b"2", b"3", b"4"]


def test_connection_close_is_obeyed(client: Socket, upstream: Upstream) -> None:
    service = served(client, upstream, *GET, "Connection: close")
    assert "Connection" not in service.head()
    service.send("HTTP/1.1 200 OK", "Content-Length: 0")
    assert client.head()["Connection"] == "close"
    assert client.is_closed


def test_a_client_that_leaves_ends_the_request(one_site: Stage, upstream: Upstream) -> None:
    with connected(one_site.address("site1")) as client:
        service = served(client, upstream)
        service.head()
    assert service.is_closed


def test_a_client_that_leaves_in_its_body_ends_the_request(one_site: Stage, upstream: Upstream) -> None:
    with connected(one_site.address("site1")) as client:
        service = served(client, upstream, "POST / HTTP/1.1", "Host: h", "Content-Length: 100")
        service.head()
        client.raw(b"half")
        assert service.exactly(4) == b"half"
    assert service.is_closed


def test_a_client_that_leaves_in_its_answer_ends_the_request(one_site: Stage, upstream: Upstream) -> None:
    with connected(one_site.address("site1")) as client:
        service = served(client, upstream)
        service.head()
        service.send("HTTP/1.1 200 OK", "Transfer-Encoding: chunked", body=b"1\r\nx\r\n")
        client.until(b"1\r\nx\r\n")
    assert service.is_closed


def test_an_answer_that_breaks_off_is_not_made_to_look_whole(client: Socket, upstream: Upstream) -> None:
    service = served(client, upstream)
    service.head()
    service.send("HTTP/1.1 200 OK", "Transfer-Encoding: chunked", body=b"3\r\nabc\r\n")
    client.until(b"abc\r\n")
    service.close()
    assert client.rest() == b""


def test_a_service_that_nobody_started_is_said_so(one_site: Stage) -> None:
    answer = one_site.ask("site1")
    assert answer.status == 502
    assert answer.headers["Content-Type"] == "application/problem+json"
    assert "connection refused" in answer.json["detail"]


def test_a_service_that_closes_without_a_word(client: Socket, upstream: Upstream) -> None:
    service = served(client, upstream, "POST / HTTP/1.1", "Host: h", "Content-Length: 0")
    service.head()
    service.close()
    answer = client.head()
    assert answer.status == 502
    assert "closed the connection" in json.loads(client.body(answer))["detail"]


@pytest.mark.parametrize(
    "said",
    [
        b"SSH-2.0-OpenSSH\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\nContent-Length: 4\r\n\r\nabcd",
    ],
)
def test_an_answer_that_cannot_be_trusted_is_not_passed_on(
    said: bytes, plane: str, client: Socket, upstream: Upstream
) -> None:
    service = served(client, upstream, "POST / HTTP/1.1", "Host: h", "Content-Length: 0")
    service.head()
    service.raw(said)
    answer = client.head()
    if plane == "haproxy" and b"chunked" in said:  # there is one length in what it passes on
        assert (answer.all("Content-Length"), answer["Transfer-Encoding"]) == ([], "chunked")
    else:
        assert answer.status == 502


def test_a_stale_connection_is_replaced_once(plane: str, client: Socket, upstream: Upstream) -> None:
    """The service closes a warm connection just as the next request comes."""
    service = served(client, upstream)
    service.head()
    service.send("HTTP/1.1 200 OK", "Content-Length: 0")
    client.head()
    client.send(*GET)
    assert service.head().first == GET[0]
    service.close()  # with the request read, and nothing said
    if plane == "haproxy":
        assert client.is_closed  # the client opens another connection, as for any that ends between requests
        return
    second = upstream.accept()
    assert second.head().first == GET[0]
    second.send("HTTP/1.1 200 OK", "Content-Length: 2", body=b"ok")
    assert client.body(client.head()) == b"ok"


def test_what_must_not_happen_twice_is_not_sent_twice(plane: str, client: Socket, upstream: Upstream) -> None:
    service = served(client, upstream)
    service.head()
    service.send("HTTP/1.1 200 OK", "Content-Length: 0")
    client.head()
    client.send("POST / HTTP/1.1", "Host: h", "Content-Length: 0")
    assert service.head().first == "POST / HTTP/1.1"
    service.close()
    if plane == "builtin":
        assert client.head().status == 502
    else:
        assert client.is_closed  # the client decides whether to send it again
    upstream.listener.setblocking(False)
    with pytest.raises(BlockingIOError):
        upstream.accept()


# -- patience ----------------------------------------------------------------------------------------------


def test_a_head_that_does_not_come_to_its_end(hasty_client: Socket) -> None:
    hasty_client.raw(b"GET / HTTP/1.1\r\nHost: h\r\nX-Slow: ")
    assert hasty_client.head().status == 408
    hasty_client.rest()


def test_a_body_that_does_not_go_on(plane: str, hasty_client: Socket, slow_upstream: Upstream) -> None:
    service = served(hasty_client, slow_upstream, "POST / HTTP/1.1", "Host: h", "Content-Length: 10")
    hasty_client.raw(b"12345")
    wanted = {408} if plane == "builtin" else {408, 504}  # HAProxy says who it waited for last
    assert hasty_client.head().status in wanted
    service.head()
    assert service.rest() == b"12345"  # and not one byte that nobody sent


def test_a_service_that_does_not_answer(hasty_client: Socket, slow_upstream: Upstream) -> None:
    service = served(hasty_client, slow_upstream)
    service.head()
    assert hasty_client.head().status == 504
    assert service.is_closed


def test_a_service_that_falls_silent(hasty_client: Socket, slow_upstream: Upstream) -> None:
    service = served(hasty_client, slow_upstream)
    service.head()
    service.send("HTTP/1.1 200 OK", "Content-Length: 10", body=b"12345")
    hasty_client.head()
    assert hasty_client.rest() == b"12345"


def test_a_client_that_does_not_read(hasty_client: Socket, slow_upstream: Upstream) -> None:
    service = served(hasty_client, slow_upstream)
    service.head()
    service.send("HTTP/1.1 200 OK", "Transfer-Encoding: chunked")
    piece = b"10000\r\n" + b"x" * 0x10000 + b"\r\n"

    def flood() -> None:
        with suppress(OSError):  # it is closed in the end
            while True:
                service.raw(piece)

    thread = threading.Thread(target=flood)
    thread.start()
    thread.join(60)
    assert not thread.is_alive()


def test_an_idle_client_is_let_go(hasty_client: Socket) -> None:
    assert hasty_client.rest() == b""


def test_idle_connections_to_the_service_are_let_go(hasty_client: Socket, slow_upstream: Upstream) -> None:
    service = served(hasty_client, slow_upstream)
    service.head()
    service.send("HTTP/1.1 200 OK", "Content-Length: 0")
    hasty_client.head()
    assert service.is_closed


def test_a_slow_client_that_reads_gets_everything(client: Socket, upstream: Upstream) -> None:
    service = served(client, upstream)
    service.head()
    body = bytes(range(256)) * 16_384
    thread = threading.Thread(target=lambda: service.send("HTTP/1.1 200 OK", f"Content-Length: {len(body)}", body=body))
    thread.start()
    answer = client.head()
    got = bytearray()
    while len(got) < len(body):
        got += client.exactly(min(65_536, len(body) - len(got)))
    thread.join()
    assert (answer.status, bytes(got)) == (200, body)

"""A request as the payload of an operation: what all sites get of it, and what none accepts."""

import asyncio
import gzip
from collections.abc import AsyncIterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cheops.backends.http.credentials import TICKET_S, Tickets
from cheops.backends.http.payload import (
    MAX_KEPT_HEADER_BYTES,
    MAX_LINE_BYTES,
    KeptResponse,
    PayloadError,
    Request,
    command_of,
    decode_response,
    encode_response,
    end_to_end,
    kept_response,
    operation_type,
    request_of,
    with_body,
)
from cheops.backends.http.request import Wait, preferences_of
from cheops.backends.http.translation import decompressed
from cheops.config.services import ReplicationConfig
from cheops.errors import ClientError
from cheops.gateway.headers import RequestHead
from cheops.gateway.interfaces import Response
from cheops.log.operation import Command

_FORM = "application/x-www-form-urlencoded"


@given(st.binary(max_size=2000))
def test_any_body_comes_back_as_it_was(body: bytes) -> None:
    request = with_body(Request(method="POST", path="/images", headers=(("X-A", "é"),)), body)
    assert request_of(command_of(request)) == request
    assert request_of(command_of(request)).inline == body


def test_only_what_is_for_all_sites_goes_to_all_sites() -> None:
    given_headers = (
        *(
            ("Host", "a"),
            ("Connection", "close"),
            ("Scope", "{a: b}"),
            ("Cheops-Wait", "all"),
            ("Via", "1.1 a"),
        ),
        *(("Authorization", "x"), ("cookie", "x"), ("X-AUTH-TOKEN", "x"), ("If-Match", "x"), ("Prefer", "x")),
        *(("Content-Length", "3"), ("Content-MD5", "x"), ("X-Forwarded-For", "10.0.0.1"), ("X-Mine", "x")),
        *(("Content-Type", "application/json"), ("X-Trace", "1")),
    )
    config = ReplicationConfig(credential_headers=(*ReplicationConfig().credential_headers, "X-Mine"))
    assert end_to_end(given_headers, config) == (("Content-Type", "application/json"), ("X-Trace", "1"))


@pytest.mark.parametrize(
    "line",
    [
        "redis-cli set a 1",
        "[]",
        "{}",
        '{"method": "GET"}',
        '{"method": "GET", "path": "no"}',
        '{"method": "GET", "path": "/a b"}',
        '{"method": "GET /x HTTP/1.1\\r\\n", "path": "/a"}',
        '{"method": "GET", "path": "/a\\r\\nX: 1"}',
        '{"method": "GET", "path": "/a", "query": "x#y"}',
        '{"method": "GET", "path": "/a", "headers": [["X", "1\\r\\nHost: b"]]}',
        '{"method": "GET", "path": "/a", "headers": [["X Y", "1"]]}',
        '{"method": "GET", "path": "/a", "headers": [["Content-Length", "1"]]}',
        '{"method": "GET", "path": "/a", "base64": "%%%"}',
        '{"method": "GET", "path": "/a", "unknown": 1}',
    ],
)
def test_what_is_no_request_is_run_nowhere(line: str) -> None:
    with pytest.raises(PayloadError):
        request_of(Command(line))


def test_a_head_that_is_too_large_is_refused() -> None:
    with pytest.raises(ClientError, match="bytes without its body; to be replicated") as refused:
        command_of(Request(method="POST", path="/a", query="x" * MAX_LINE_BYTES))
    assert refused.value.status == 431


@pytest.mark.parametrize(
    ("method", "sub_path", "content_type", "expected"),
    [
        ("PUT", "", "application/json", "put"),
        ("PATCH", "", "application/json", "patch"),
        ("PATCH", "", "application/merge-patch+json; charset=utf-8", "patch"),
        ("PATCH", "", "application/json-patch+json", "patch-steps"),
        ("PATCH", "", "application/openstack-images-v2.1-json-patch", "patch-steps"),
        ("PATCH", "", "application/offset+octet-stream", "patch-steps"),
        ("PATCH", "", "", "patch-steps"),
        ("DELETE", "", "", "delete"),
        ("POST", "", "", "post"),
        ("POST", "reboot", "", "post reboot"),
        ("PUT", "tags/x", "", "put tags/x"),
    ],
)
def test_what_the_matrix_calls_it(method: str, sub_path: str, content_type: str, expected: str) -> None:
    assert operation_type(method, sub_path, content_type) == expected
    assert len(operation_type(method, "x" * 500, content_type)) == 100


# -- answers -------------------------------------------------------------------------------------------------


@given(st.binary(max_size=300), st.integers(0, 300))
def test_an_answer_is_kept_if_it_is_small_and_else_its_size(body: bytes, most: int) -> None:
    headers = (("Content-Type", "x"), ("Date", "d"), ("Cheops-Site", "forged"), ("X-Other", "y"))
    kept = decode_response(encode_response(kept_response(200, headers, body, most, len(body))))
    assert kept is not None
    assert kept.headers == (("Content-Type", "x"), ("X-Other", "y"))
    assert (kept.body, kept.cut_bytes) == ((body, 0) if len(body) <= most else (b"", len(body)))


def test_a_digest_is_kept_with_the_bytes_that_it_is_about() -> None:
    headers = (("Content-MD5", "x"), ("ETag", "y"))
    assert kept_response(200, headers, b"abc", 10, 3).headers == headers
    assert kept_response(200, headers, b"", 10, 3_000).headers == (("ETag", "y"),)


def test_headers_of_an_answer_are_bounded_and_well_known_ones_go_last() -> None:
    many = tuple((f"X-{number}", "y" * 500) for number in range(200))
    kept = kept_response(200, (*many, ("Location", "/a" * 300)), b"", 10, 0)
    assert kept.headers[-1][0] == "Location"
    assert sum(len(name) + len(value) for name, value in kept.headers) <= MAX_KEPT_HEADER_BYTES
    assert kept.cut_headers == 201 - len(kept.headers) > 0


def test_a_digest_of_a_request_stays_unless_ids_in_its_body_are_translated() -> None:
    digest = ("Content-MD5", "x")
    for content_type, expected in (("application/xml", (digest,)), ("application/json", ()), (_FORM, ())):
        kept = end_to_end((("Content-Type", content_type), digest), ReplicationConfig())
        assert kept[1:] == expected


@pytest.mark.parametrize("host", ["a b", "a\r\nX: 1", "a/b", "x" * 301])
def test_a_host_that_cannot_be_sent_is_run_nowhere(host: str) -> None:
    with pytest.raises(PayloadError):
        request_of(command_of(Request(method="PUT", path="/a", host=host)))


def test_a_text_that_is_no_answer_is_none() -> None:
    assert decode_response("connection refused") is None
    assert decode_response(encode_response(KeptResponse(status=204))) == KeptResponse(status=204)


def test_a_packed_answer_is_opened() -> None:
    raw = b'{"id": 5}' * 100_000

    async def body() -> AsyncIterator[bytes]:
        packed = gzip.compress(raw)
        for start in range(0, len(packed), 100):
            yield packed[start : start + 100]

    async def read() -> bytes:
        return b"".join([piece async for piece in decompressed(Response(200, (("Content-Encoding", "gzip"),), body()))])

    assert asyncio.run(read()) == raw


# -- credentials and preferences -----------------------------------------------------------------------------


def test_a_ticket_is_good_for_a_while_and_here_alone() -> None:
    now = [0.0]
    tickets = Tickets(lambda: now[0])
    ticket = tickets.issue((("Cookie", "x"),))
    assert tickets.credentials(ticket) == (("Cookie", "x"),)
    assert Tickets(lambda: now[0]).credentials(ticket) is None
    now[0] = TICKET_S + 1
    assert tickets.credentials(ticket) is None
    tickets.issue(())
    assert len(tickets._kept) == 1


@pytest.mark.parametrize(
    ("headers", "wait", "wait_s"),
    [
        ((), Wait.FIRST, 30.0),
        ((("Prefer", "wait=10"),), Wait.FIRST, 10.0),
        ((("Prefer", "return=minimal, wait=7"), ("Cheops-Wait", "All")), Wait.ALL, 7.0),
        ((("Prefer", "respond-async"), ("Cheops-Wait", "quorum")), Wait.QUORUM, 0.0),
        ((("Prefer", "wait=999999"),), Wait.FIRST, 3600.0),
        ((("Prefer", "waited=3"),), Wait.FIRST, 30.0),
    ],
)
def test_how_long_and_for_whom(headers: tuple[tuple[str, str], ...], wait: Wait, wait_s: float) -> None:
    found = preferences_of(RequestHead("POST", "/", headers))
    assert (found.wait, found.wait_s) == (wait, wait_s)
    assert [one.needed(5) for one in Wait] == [1, 3, 5]


def test_a_key_that_is_too_long_is_refused() -> None:
    with pytest.raises(ClientError, match="an Idempotency-Key has at most 255 characters"):
        preferences_of(RequestHead("POST", "/", (("Idempotency-Key", "x" * 256),)))

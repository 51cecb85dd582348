"""Secret members: recognized in every form of a body, in pieces of every size, and never kept of a response."""

import asyncio
import json
from collections.abc import AsyncIterator

import pytest

from cheops.backends.http.secrets import MARK, check_headers, check_query, masked, without_secrets
from cheops.config.request_rules import SecretMembers
from cheops.errors import ClientError

SECRETS = SecretMembers(paths=frozenset({("vault", "pin")}))
JSON, FORM, XML = "application/json", "application/x-www-form-urlencoded", "application/xml"
PARTS = "multipart/form-data; boundary=b"


def passed(body: bytes, content_type: str, piece: int, secrets: SecretMembers = SECRETS) -> bytes:
    """What is handed on of a body that comes in pieces."""
    handed = bytearray()

    async def pieces() -> AsyncIterator[bytes]:
        for start in range(0, len(body), piece):
            yield body[start : start + piece]

    async def read() -> None:
        async for one in without_secrets(pieces(), content_type, secrets):
            handed.extend(one)

    try:
        asyncio.run(read())
    except ClientError as error:
        assert error.status == 422  # noqa: PT017 - what was handed on before counts, too
        assert b"hunter2" not in handed
        raise
    return bytes(handed)


WITH_SECRETS = [
    (b'{"password": "hunter2"}', JSON),
    (b'{"server": {"adminPass": "hunter2"}}', JSON),
    (b'{"server": {"admin_pass":\n "hunter2"}}', "application/openstack-images-v2.1+json"),
    (b'[{"a": 1}, {"deep": [{"PassWord": "hunter2"}]}]', JSON),
    (b'{"p\\u0061ssword": "hunter2"}', JSON),
    (b'{"password": "hunter2", "password": null}', JSON),
    (b'{"a": "' + b"x" * 20_000 + b'", "password": "hunter2"}', JSON),
    (b'{"vault": [{"pin": "hunter2"}]}', JSON),
    (b' \xef\xbb\xbf{"password": "hunter2"}', ""),
    (b'{"password": "hunter2"}', FORM),  # as curl sends it
    (b'{"password": "hunter2"}', "text/plain"),
    (b"name=x&password=hunter2", FORM),
    (b"user%5Bpassword%5D=hunter2", FORM),
    (b"pass%77ord=hunter2", ""),
    (b'--b\r\nContent-Disposition: form-data; name="password"\r\n\r\nhunter2\r\n--b--', PARTS),
    (b"<a:user><a:password>hunter2</a:password></a:user>", XML),
]
WITHOUT = [
    (b'{"name": "password", "pin": 1, "text": "\\"password\\": 1"}', JSON),
    (b'{"vault": {"a": {"pin": 1}}}', JSON),
    (b"name=password&x=1", FORM),
    (b"<a>password</a><passwordHint/>", XML),
    (b'--b\r\nContent-Disposition: form-data; name="password-hint"\r\n\r\nx\r\n--b--', PARTS),
    (b'<input name="password">', "text/html"),
    (b'{"password": "in a file"}', "application/octet-stream"),
    (b"", JSON),
]


@pytest.mark.parametrize("piece", [1, 7, 1 << 20])
@pytest.mark.parametrize(("body", "content_type"), WITH_SECRETS)
def test_a_request_with_a_secret_is_refused_before_the_secret_is_handed_on(
    body: bytes, content_type: str, piece: int
) -> None:
    with pytest.raises(ClientError, match="never written down"):
        passed(body, content_type, piece)


@pytest.mark.parametrize("piece", [1, 7, 1 << 20])
@pytest.mark.parametrize(("body", "content_type"), WITHOUT)
def test_everything_else_passes_as_it_is(body: bytes, content_type: str, piece: int) -> None:
    assert passed(body, content_type, piece) == body


def test_a_name_that_is_not_secret_here() -> None:
    body = b'{"password": "hunter2"}'
    assert passed(body, JSON, 9, SecretMembers(frozenset({"pin"}))) == body
    with pytest.raises(ClientError):
        passed(b'{"a": {"Pin": 1}}', JSON, 9, SecretMembers(frozenset({"pin"})))


@pytest.mark.parametrize("query", ["password=a", "a=b&api_key=c", "a=b;access%5Ftoken=c", "X-Amz-Signature=d"])
def test_a_secret_in_a_query(query: str) -> None:
    with pytest.raises(ClientError, match="the query of the request"):
        check_query(query, SECRETS)
    check_query("name=password&limit=3", SECRETS)


def test_of_a_response_secrets_are_not_kept() -> None:
    body = b'{"server": {"id": "5", "adminPass": "hunter2"}, "keys": [{"private_key": {"a": "hunter2"}}]}'
    kept = masked(body, JSON, SECRETS)
    assert kept is not None
    assert json.loads(kept) == {"server": {"id": "5", "adminPass": MARK}, "keys": [{"private_key": MARK}]}
    twice = masked(b'{"password": "hunter2", "password": 1}', JSON, SECRETS)
    assert json.loads(twice or b"") == {"password": MARK}
    same = b'{"b":  1,\n"a": 2}'
    assert masked(same, JSON, SECRETS) is same
    assert masked(b"\x00\x01password", "application/octet-stream", SECRETS) == b"\x00\x01password"


@pytest.mark.parametrize(
    ("body", "content_type"),
    [(b'{"password": "hunter2"', JSON), (b"<password>hunter2</password>", XML), (b'{"a":' * 2000, JSON)],
)
def test_of_a_response_that_cannot_be_read_nothing_is_kept(body: bytes, content_type: str) -> None:
    assert masked(body, content_type, SECRETS) is None


@pytest.mark.parametrize(
    "name", ["X-Amz-Server-Side-Encryption-Customer-Key", "Password", "x-admin-pass", "X-PIN-Code"]
)
def test_a_secret_in_a_header(name: str) -> None:
    secrets = SecretMembers(SecretMembers().names | {"pincode"})
    with pytest.raises(ClientError, match="a header of the request has a secret") as error:
        check_headers(((name, "hunter2"),), secrets)
    assert "hunter2" not in str(error.value)
    check_headers((("X-Amz-Server-Side-Encryption-Customer-Algorithm", "AES256"), ("X-Passwords", "no")), secrets)

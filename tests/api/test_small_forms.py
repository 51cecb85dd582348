"""Small forms: read in one step exactly as the general parser reads them, or left to it."""

import asyncio
from collections.abc import AsyncGenerator

import pytest
from hypothesis import given
from hypothesis import strategies as st
from starlette.datastructures import Headers, UploadFile
from starlette.formparsers import MultiPartException, MultiPartParser

from cheops.api.small_forms import fields_of
from cheops.client.agent import Form

TYPE = "multipart/form-data; boundary=XX"
HEAD = b'--XX\r\nContent-Disposition: form-data; name="%b"\r\n\r\n'
END = b"\r\n--XX--\r\n"


def generally(content_type: str, body: bytes) -> list[tuple[str, str | UploadFile]] | None:
    """As the general parser reads it; None for a form that it refuses."""

    async def stream() -> AsyncGenerator[bytes, None]:
        yield body
        yield b""

    try:
        return asyncio.run(MultiPartParser(Headers({"content-type": content_type}), stream()).parse()).multi_items()
    except MultiPartException:
        return None


def test_a_form_of_the_command_line_is_read() -> None:
    form = Form({"command": "true", "sites": "a & b", "type": "été"}, {})
    assert fields_of(form.content_type, b"".join(form), 3) == list(form.fields.items())
    assert fields_of(form.content_type, b"".join(form), 2) is None, "too many fields: the general parser refuses it"


def test_an_empty_form_is_read() -> None:
    assert fields_of(TYPE, b"--XX--\r\n", 3) == []


@pytest.mark.parametrize(
    ("content_type", "body"),
    [
        (TYPE, HEAD % b"a" + b"\xff" + END),
        (TYPE, HEAD % b"a" + b"x"),
        (TYPE, b'--XX\r\nContent-Disposition: form-data; name="a"; filename="b"\r\n\r\nx' + END),
        (TYPE, b'--XX\r\nContent-Disposition: form-data; name="a"\r\nContent-Type: text/plain\r\n\r\nx' + END),
        (TYPE, b"preamble\r\n" + HEAD % b"a" + b"x" + END),
        (TYPE, HEAD % b"a" + b"x" + END + b"epilogue"),
        (TYPE, HEAD % b"%22" + b"x" + END),
        (TYPE + "; charset=utf-16", HEAD % b"a" + b"x" + END),
        ('multipart/form-data; boundary="XX"', HEAD % b"a" + b"x" + END),
        (TYPE, HEAD % b"a" + b"x" * 70_000 + END),
        ("application/x-www-form-urlencoded", b"a=x"),
    ],
)
def test_anything_else_is_for_the_general_parser(content_type: str, body: bytes) -> None:
    assert fields_of(content_type, body, 10) is None


PIECES = st.sampled_from(
    [
        HEAD % b"a",
        HEAD % b"b",
        b"\r\n",
        b"--XX",
        b"--XX\r\n",
        b"--",
        b"\n",
        b"\r",
        b"x",
        "é".encode(),
        END,
        b"XX",
        b"\0",
    ]
)


@given(st.lists(PIECES, max_size=12).map(b"".join))
def test_what_is_read_is_what_the_general_parser_reads(body: bytes) -> None:
    fields = fields_of(TYPE, body, 10)
    assert fields is None or fields == generally(TYPE, body)


@given(st.lists(st.tuples(st.sampled_from(["a", "b.c"]), st.text()), max_size=5), st.data())
def test_also_where_bytes_are_changed(fields: list[tuple[str, str]], data: st.DataObject) -> None:
    body = bytearray(
        b"".join(HEAD % n.encode() + t.encode("utf-8", "replace") + b"\r\n" for n, t in fields) + b"--XX--\r\n"
    )
    place = data.draw(st.integers(0, len(body) - 1))
    body[place : place + data.draw(st.integers(0, 2))] = data.draw(
        st.sampled_from([b"", b"\r", b"\n", b"-", b'"', b"X"])
    )
    read = fields_of(TYPE, bytes(body), 10)
    assert read is None or read == generally(TYPE, bytes(body))

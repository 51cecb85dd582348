"""Forms that come in one piece and have a few short fields, as `cheops exec` and curl send them, read in one step.

The general parser works byte by byte, for forms of any size with files. Here only the one spelling is read that nearly
all clients use, and for which there is one way to read it. Everything else gives None, and is for the general parser.
"""

import re

from starlette.datastructures import UploadFile

_MAX_BYTES = 64 * 1024
_TYPE = re.compile(r"multipart/form-data; ?boundary=([0-9A-Za-z'()+_,./:-]{1,70})")
_HEAD = re.compile(rb'\r\nContent-Disposition: form-data; name="([0-9A-Za-z_.-]{1,100})"\r\n\r\n')
_ENDS = (b"--\r\n", b"--")


def fields_of(content_type: str, body: bytes, most_fields: int) -> list[tuple[str, str | UploadFile]] | None:
    """The fields of a form, in their order; None if it is for the general parser, which may refuse it."""
    kind = _TYPE.fullmatch(content_type)
    if kind is None or len(body) > _MAX_BYTES:
        return None
    first, *parts = (b"\r\n" + body).split(b"\r\n--" + kind[1].encode())
    if first or not parts or parts.pop() not in _ENDS or len(parts) > most_fields:
        return None
    fields: list[tuple[str, str | UploadFile]] = []
    for part in parts:
        head = _HEAD.match(part)
        if head is None:
            return None
        try:
            fields.append((head[1].decode(), part[head.end() :].decode()))
        except UnicodeDecodeError:
            return None
    return fields

"""Documents and messages as plain data, as any JSON reader has them, for tests that change them."""

from collections.abc import Mapping
from typing import Any

from cheops.engine.documents import Document, Message
from cheops.store.codec import decode_message, decode_plain, encode, encode_message, encode_plain


def to_json(document: Document) -> dict[str, Any]:
    return decode_plain(encode(document))


def message_to_json(message: Message) -> dict[str, Any]:
    return decode_plain(encode_message(message))


def message_from_json(obj: Mapping[str, Any]) -> Message:
    return decode_message(encode_plain(obj))

"""JSON from outside, read into what it should be; whatever is wrong with it is a ValueError."""

from typing import TypeVar

import msgspec

T = TypeVar("T")


def decoded(raw: bytes | str, kind: type[T]) -> T:
    try:
        return msgspec.json.decode(raw, type=kind)
    except UnicodeDecodeError:
        raise ValueError("not UTF-8 text") from None
    except RecursionError:
        raise ValueError("nested too deep") from None
    except msgspec.DecodeError as error:
        raise ValueError(str(error)) from None

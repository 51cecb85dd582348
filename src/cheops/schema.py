"""How a field of a struct is documented: its meaning, an example and its limits are declared with its type.

The OpenAPI document, the reference in docs/api.md and the validation of requests all read this one annotation:

    class Ping(Struct, frozen=True, kw_only=True):
        took_ms: Annotated[float, doc("How long the response took.", 11.2, ge=0)]
"""

from typing import Any

from msgspec import Meta


def doc(description: str, example: Any = None, **limits: Any) -> Meta:
    """Beside a type in `Annotated`: what the field means, an example, and limits such as `max_length`."""
    examples = None if example is None else [example]
    return Meta(description=description, examples=examples, **limits)

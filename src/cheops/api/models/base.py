"""How a field of a model is documented."""

from typing import Any

from msgspec import Meta


def doc(description: str, example: Any = None, **limits: Any) -> Meta:
    """Beside a type in `Annotated`: what the field means, an example, and limits such as `max_length`."""
    examples = None if example is None else [example]
    return Meta(description=description, examples=examples, **limits)

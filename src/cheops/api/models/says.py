"""What a field of a model means.

Models are msgspec structs: made and read in no time, so that a client starts fast. Their JSON schemas, with
what `says` tells, are part of the OpenAPI document. Answers may get more fields in later versions, so readers
pass over what they do not know; in a request, what nobody knows is a mistake and refused.
"""

from typing import Any

from msgspec import Meta


def says(description: str, example: Any = None, **limits: Any) -> Meta:
    """Beside a type in `Annotated`: what the field means, an example, and limits such as `max_length`."""
    examples = None if example is None else [example]
    return Meta(description=description, examples=examples, **limits)

"""The OpenAPI document."""

from collections.abc import Callable, Iterator
from typing import Any

import msgspec
from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi

from cheops import __version__
from cheops.api import models
from cheops.api.problems import MEDIA_TYPE

_REFERENCE = "#/components/schemas/"
_JSON = "application/json"
_REASONS = {
    400: "The request cannot be right, whatever the state of the system.",
    401: "Nobody knows who asks: show a token of this site.",
    403: "Whoever asks may not, or the command is not one that the resource's type allows.",
    404: "It is not known here.",
    409: "It cannot be done as things are.",
    413: "The request is too large.",
    422: "A parameter or a field is not what it must be.",
    429: "Asked too often; `Retry-After` says when to go on.",
    502: "Another site was asked, and its answer was lost.",
    503: "It cannot be done now; asking again later may help.",
    507: "There is no room for more.",
}
Document = dict[str, Any]


def _all_models() -> list[type[msgspec.Struct]]:
    found = (getattr(models, name) for name in models.__all__)
    return [one for one in found if isinstance(one, type) and issubclass(one, msgspec.Struct)]


_, SCHEMAS = msgspec.json.schema_components(_all_models(), ref_template=_REFERENCE + "{name}")


def responses(model: type[msgspec.Struct], description: str, *codes: int, **more: Any) -> dict[Any, Document]:
    """`responses` of a route: this model, and problems with these statuses."""
    content = {_JSON: {"schema": _reference(model)}, **more}
    return {200: {"description": description, "content": content}, **problems(*codes)}


def problems(*codes: int) -> dict[Any, Document]:
    content = {MEDIA_TYPE: {"schema": {"$ref": f"{_REFERENCE}Problem"}}}
    return {code: {"description": _REASONS[code], "content": content} for code in sorted({401, 403, 422, 429, *codes})}


def body(model: type[msgspec.Struct], **more: Any) -> Document:
    """`openapi_extra` of a route that takes this model as JSON."""
    content = {_JSON: {"schema": _reference(model)}, **more}
    return {"requestBody": {"required": True, "content": content}}


def form_of(model: type[msgspec.Struct]) -> Document:
    """The same model as a field of a form that files are part of."""
    properties = {"operation": {"type": "string", "description": f"A {model.__name__} as JSON."}}
    schema = {"type": "object", "properties": properties, "required": ["operation"]}
    file = {"description": "Each further part is a file, under the name that the command uses."}
    return {"multipart/form-data": {"schema": {**schema, "additionalProperties": file}}}


def lines_of(model: type[msgspec.Struct]) -> Document:
    return {"application/x-ndjson": {"schema": {"type": "string", "description": f"A {model.__name__} per line."}}}


def _reference(model: type[msgspec.Struct]) -> Document:
    return {"$ref": f"{_REFERENCE}{model.__name__}"}


# -- examples --------------------------------------------------------------------------------------------


def example_of(model: type[msgspec.Struct]) -> Any:
    return _example(SCHEMAS[model.__name__])


def _add_examples(document: Document) -> None:
    """To all that is a model. Last of all: FastAPI would take every null out of them."""
    for _, _, operation in operations_of(document):
        for one in (operation.get("requestBody", {}), *operation["responses"].values()):
            for content in one.get("content", {}).values():
                if "$ref" in content["schema"]:
                    content["example"] = _example(content["schema"])


def _example(schema: Document) -> Any:
    if "examples" in schema:
        return schema["examples"][0]
    if "$ref" in schema:
        return _example(SCHEMAS[schema["$ref"].removeprefix(_REFERENCE)])
    if "properties" in schema:
        return {name: _example(part) for name, part in schema["properties"].items()}
    if schema.get("type") == "array":
        return [_example(schema["items"])] if "items" in schema else []
    if "enum" in schema:
        return schema["enum"][0]
    return None  # every other field has an example, unless it may be null


# -- the document ----------------------------------------------------------------------------------------


def documented(app: FastAPI) -> Callable[[], Document]:
    """What makes the document, once."""

    def make() -> Document:
        if app.openapi_schema is None:
            found = get_openapi(
                title="Cheops",
                version=__version__,
                summary="One application per site, acting together as one.",
                description=(
                    "Every answer is what the agent that is asked knows. Ids are one segment of a path: "
                    "percent-encode them, slashes too. Problems are told as RFC 9457 has it."
                ),
                routes=app.routes,
                tags=app.openapi_tags,
                servers=[{"url": "/api/v1"}],
            )
            found.setdefault("components", {}).setdefault("schemas", {}).update(SCHEMAS)
            _add_examples(found)
            app.openapi_schema = found
        return app.openapi_schema

    return make


def operations_of(document: Document) -> Iterator[tuple[str, str, Document]]:
    """Method, path and description of everything that can be asked."""
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            yield method.upper(), path, operation

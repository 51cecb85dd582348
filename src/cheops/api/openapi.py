"""The OpenAPI document, from the declarations of the endpoints and the schemas of their models."""

import re
from collections.abc import Iterator
from functools import cache
from typing import Any

import msgspec

from cheops import __version__
from cheops.api.endpoints import BASE, ENDPOINTS, PATH_PARAMETERS, TAGS, Endpoint
from cheops.api.endpoints.declaration import EVENT_STREAM, JSON, NDJSON, PROBLEM_JSON, parameters_of
from cheops.api.models.site import Problem

DOCUMENT_PATH = "/openapi.json"
Document = dict[str, Any]
AnyEndpoint = Endpoint[Any, Any, Any]
_REFERENCE = "#/components/schemas/"
_EVERYWHERE = (401, 403, 422, 429)  # problems of every endpoint
_REASONS = {
    400: "The request cannot be valid, whatever the state of the system.",
    401: "The client is not authenticated: send a token of this site.",
    403: "The client has no right to do this, or the resource's type does not allow the command.",
    404: "It is not known at this site.",
    409: "The current state does not allow it.",
    413: "The request is too large.",
    422: "A parameter or a field of the body is not valid.",
    429: "Too many requests; `Retry-After` says when to continue.",
    502: "The request was forwarded to another site, whose response was lost.",
    503: "It is not possible now; the same request may succeed later.",
    507: "There is not enough space left to store more.",
}


@cache
def document() -> Document:
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Cheops",
            "summary": "One instance of an application per site, acting together as one application.",
            "description": (
                "Every response is what this agent knows. Ids are one segment of a path: percent-encode them, slashes "
                "included. Problems are reported as RFC 9457 defines."
            ),
            "version": __version__,
        },
        "servers": [{"url": BASE}],
        "tags": [{"name": name, "description": text} for name, text in TAGS.items()],
        "paths": _paths(),
        "components": {"schemas": _schemas()[1]},
    }


@cache
def document_json() -> bytes:
    return msgspec.json.encode(document())


def operations_of(openapi: Document) -> Iterator[tuple[str, str, Document]]:
    """Method, path and description of each endpoint in a document."""
    for path, methods in openapi["paths"].items():
        for method, operation in methods.items():
            yield method.upper(), path, operation


# -- endpoints --------------------------------------------------------------------------------------------------


def _paths() -> Document:
    paths: Document = {}
    for endpoint in ENDPOINTS:
        paths.setdefault(endpoint.path, {})[endpoint.method.lower()] = _operation(endpoint)
    return paths


def _operation(endpoint: AnyEndpoint) -> Document:
    operation: Document = {"operationId": endpoint.name, "tags": [endpoint.tag], "summary": endpoint.summary}
    if endpoint.description:
        operation["description"] = endpoint.description
    if parameters := [*_path_parameters(endpoint.path), *_parameters(endpoint)]:
        operation["parameters"] = parameters
    if endpoint.body is not None:
        operation["requestBody"] = {"required": True, "content": _body(endpoint)}
    operation["responses"] = {str(status): response for status, response in sorted(_responses(endpoint).items())}
    return operation


def _path_parameters(path: str) -> Iterator[Document]:
    for match in re.finditer(r"\{(\w+)\}", path):
        description, example = PATH_PARAMETERS[path[: match.end()]]
        schema = {"type": "string", "minLength": 1, "examples": [example]}
        yield {"name": match[1], "in": "path", "required": True, "description": description, "schema": schema}


def _parameters(endpoint: AnyEndpoint) -> Iterator[Document]:
    properties = _schemas()[0].get(endpoint.parameters.__name__, {}).get("properties", {})
    for one in parameters_of(endpoint.parameters):
        schema = _without_null(properties[one.name])
        yield {
            "name": one.name,
            "in": "header" if one.is_header else "query",
            "required": one.is_required,
            "description": schema.pop("description"),
            "schema": schema,
        }


def _without_null(schema: Document) -> Document:
    """A parameter that may be left out is None inside the agent, but a client cannot send null."""
    schema = dict(schema)
    others = [one for one in schema.get("anyOf", ()) if one != {"type": "null"}]
    if len(others) == 1:
        del schema["anyOf"]
        schema = {**others[0], **schema}
    if schema.get("default", ...) is None:
        del schema["default"]
    return schema


def _body(endpoint: AnyEndpoint) -> Document:
    assert endpoint.body is not None  # noqa: S101 - its caller checks that
    content = {JSON: _content(endpoint.body)}
    if endpoint.files:
        properties = {"operation": {"type": "string", "description": f"A {endpoint.body.__name__} as JSON."}}
        file = {"description": "Each further part is a file, under the name that the command uses."}
        schema = {"type": "object", "properties": properties, "required": ["operation"], "additionalProperties": file}
        content["multipart/form-data"] = {"schema": schema}
    return content


def _responses(endpoint: AnyEndpoint) -> dict[int, Document]:
    content: Document = {endpoint.media_type: _content(endpoint.response)}
    if endpoint.media_type == EVENT_STREAM:
        example = f"data: {msgspec.json.encode(_example_of(endpoint.response)).decode()}"
        content = {EVENT_STREAM: {"schema": {"type": "string"}, "example": example}}
    problem = {PROBLEM_JSON: _content(Problem)}
    responses = {
        status: {"description": _REASONS[status], "content": problem} for status in (*_EVERYWHERE, *endpoint.problems)
    }
    for status, description in endpoint.statuses.items():
        responses[status] = {"description": description, "content": content}
    if endpoint.lines:
        schema = {"type": "string", "description": f"A {endpoint.lines.__name__} per line."}
        content = {**content, NDJSON: {"schema": schema}}
    responses[200] = {"description": endpoint.success, "content": content}
    return responses


def _content(model: type) -> Document:
    return {"schema": {"$ref": f"{_REFERENCE}{model.__name__}"}, "example": _example_of(model)}


# -- schemas and examples ---------------------------------------------------------------------------------------


@cache
def _schemas() -> tuple[Document, Document]:
    """The schemas of all structs of parameters, and those of everything else, by name."""
    parameters = {endpoint.parameters for endpoint in ENDPOINTS}
    models: set[type] = {Problem}
    for endpoint in ENDPOINTS:
        models |= {one for one in (endpoint.response, endpoint.body, endpoint.lines) if one is not None}
    _, schemas = msgspec.json.schema_components([*parameters, *models], ref_template=_REFERENCE + "{name}")
    names = {one.__name__ for one in parameters}
    components = {name: schemas[name] for name in sorted(schemas) if name not in names}
    return {name: schemas[name] for name in names if name in schemas}, components


def _example_of(model: type) -> Any:
    return _example(_schemas()[1][model.__name__])


def _example(schema: Document) -> Any:
    if "examples" in schema:
        return schema["examples"][0]
    if "$ref" in schema:
        return _example(_schemas()[1][schema["$ref"].removeprefix(_REFERENCE)])
    if "properties" in schema:
        return {name: _example(part) for name, part in schema["properties"].items()}
    if schema.get("type") == "array":
        return [_example(schema["items"])] if "items" in schema else []
    if "enum" in schema:
        return schema["enum"][0]
    return None  # every other field has an example, unless it may be null

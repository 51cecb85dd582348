"""The tables of docs/api.md, from the declarations of the endpoints and their models.

A table of endpoints stands between two marks, of which the first names a tag; the models have one block of their own:

    <!-- endpoints: sites -->
    <!-- end of endpoints -->

    <!-- models -->
    <!-- end of models -->
"""

import re
from typing import Any

from cheops.api.endpoints import ENDPOINTS, Endpoint
from cheops.api.endpoints.declaration import EVENT_STREAM, parameters_of
from cheops.api.openapi import document

_ENDPOINTS = re.compile(r"(?<=<!-- endpoints: )(\w+)( -->\n).*?(?=<!-- end of endpoints -->)", re.DOTALL)
_MODELS = re.compile(r"(?<=<!-- models -->\n).*?(?=<!-- end of models -->)", re.DOTALL)
_TYPES = {"string": "text", "boolean": "true or false", "integer": "integer", "number": "number", "null": "null"}


def with_tables(page: str) -> str:
    """The page with its tables as the declarations say."""
    page = _ENDPOINTS.sub(lambda block: f"{block[1]}{block[2]}{_endpoints(block[1])}", page)
    return _MODELS.sub(lambda _: _models(), page)


# -- endpoints -------------------------------------------------------------------------------------------------


def _endpoints(tag: str) -> str:
    endpoints = [endpoint for endpoint in ENDPOINTS if endpoint.tag == tag]
    assert endpoints, f"there is no endpoint with the tag '{tag}'"
    rows = "".join(map(_row, endpoints))
    notes = "".join(f"\n`{one.name}`: {one.description}\n" for one in endpoints if one.description)
    return f"\n| | operation | parameters | request | response |\n| --- | --- | --- | --- | --- |\n{rows}{notes}\n"


def _row(endpoint: Endpoint[Any, Any, Any]) -> str:
    parameters = ", ".join(f"`{one.name}`" for one in parameters_of(endpoint.parameters))
    body = _link(endpoint.body.__name__) if endpoint.body else ""
    stream = "a stream of " if endpoint.media_type == EVENT_STREAM else ""
    summary = endpoint.summary[0].lower() + endpoint.summary[1:]
    return (
        f"| `{endpoint.method} {endpoint.template}` | `{endpoint.name}`: {summary} | {parameters} | {body} "
        f"| {stream}{_link(endpoint.response.__name__)} |\n"
    )


def _link(model: str) -> str:
    return f"[{model}](#{model.lower()})"


# -- models ----------------------------------------------------------------------------------------------------


def _models() -> str:
    return "".join(_model(name, schema) for name, schema in document()["components"]["schemas"].items()) + "\n"


def _model(name: str, schema: dict[str, Any]) -> str:
    head = f"\n### {name}\n\n" + (f"{' '.join(schema['description'].split())}\n\n" if "description" in schema else "")
    if "enum" in schema:
        return head + _values(schema["enum"]) + "\n"
    required = schema.get("required", ())
    rows = [
        f"| `{field}` | {_type(part)}{'' if field in required else '; optional'} | {part['description']} |\n"
        for field, part in schema["properties"].items()
    ]
    return head + "".join(["| field | type | meaning |\n| --- | --- | --- |\n", *rows])


def _type(part: dict[str, Any]) -> str:
    if "$ref" in part:
        return _link(part["$ref"].rpartition("/")[2])
    if "anyOf" in part:
        return " or ".join(map(_type, part["anyOf"]))
    if "enum" in part:
        return _values(part["enum"])
    if part.get("type") == "array":
        return f"list of {_type(part['items'])}" if "items" in part else f"list of {_type(part['prefixItems'][0])}"
    if part.get("type") == "object":
        of = part.get("additionalProperties")
        return f"object of {_type(of)}" if of else "object"
    return _TYPES.get(part.get("type", ""), "any")


def _values(values: list[str]) -> str:
    return ", ".join(f"`{value}`" for value in values)

"""The OpenAPI document: complete, with valid examples, the same as the reference, and true of an agent.

`pytest tests/api/test_openapi.py --update-reference` rewrites the tables of docs/api.md.
"""

import re
from typing import Any

import msgspec
import pytest

from cheops.api.endpoints import ENDPOINTS
from cheops.api.models.operations import SubmitRequest
from cheops.api.models.site import CHECK_DOCUMENT, CHECK_GROUPS, Problem
from cheops.api.openapi import document, operations_of
from cheops.client import Agent
from tests.agent.rig import MakeRig
from tests.agent.types import TALLY
from tests.api.reference import with_tables
from tests.support.command import ROOT

OPENAPI = document()
OPERATIONS = {operation["operationId"]: (method, path, operation) for method, path, operation in operations_of(OPENAPI)}
PAGE = ROOT / "docs" / "api.md"
REFERENCE = PAGE.read_text(encoding="utf-8")


def contents(operation: dict[str, Any]) -> list[dict[str, Any]]:
    """Everything with a schema in the request or the responses of an operation."""
    found = [operation["requestBody"]] if "requestBody" in operation else []
    found += operation["responses"].values()
    return [content for one in found for content in one.get("content", {}).values()]


@pytest.mark.parametrize("name", OPERATIONS)
def test_everything_that_can_be_asked_is_described(name: str) -> None:
    method, path, operation = OPERATIONS[name]
    assert operation["summary"]
    assert operation["tags"]
    assert "200" in operation["responses"]
    for parameter in operation.get("parameters", ()):
        assert parameter.get("description"), f"{method} {path}: {parameter['name']}"
    for status, answer in operation["responses"].items():
        assert answer["description"]
        assert answer["content"], f"{method} {path}: {status}"
        if int(status) >= 400 and status != "503":
            assert list(answer["content"]) == ["application/problem+json"]


def test_examples_are_what_they_are_examples_of() -> None:
    models = {one.__name__: one for endpoint in ENDPOINTS for one in (endpoint.response, endpoint.body) if one}
    models[Problem.__name__] = Problem
    seen = set()
    for _, _, operation in OPERATIONS.values():
        for content in contents(operation):
            name = content["schema"].get("$ref", "").rpartition("/")[2]
            if "example" in content and name:
                seen.add(name)
                msgspec.convert(content["example"], models[name])
    assert len(seen) > 20


def test_every_field_of_every_model_is_described() -> None:
    for name, schema in OPENAPI["components"]["schemas"].items():
        assert schema.get("description") or "enum" in schema, name
        for field, part in schema.get("properties", {}).items():
            assert part.get("description"), f"{name}.{field}"


def test_references_lead_somewhere() -> None:
    schemas = OPENAPI["components"]["schemas"]
    assert set(re.findall(r"#/components/schemas/(\w+)", str(OPENAPI))) <= set(schemas)


# -- the reference ---------------------------------------------------------------------------------------------


def test_the_tables_are_up_to_date(request: pytest.FixtureRequest) -> None:
    if request.config.getoption("--update-reference"):
        PAGE.write_text(with_tables(REFERENCE), encoding="utf-8")
    assert PAGE.read_text(encoding="utf-8") == with_tables(REFERENCE), "an endpoint changed: pytest --update-reference"


def test_the_reference_has_everything_and_nothing_else() -> None:
    written = set(re.findall(r"^\| `(GET|POST|PUT|DELETE) (/api/v1\S*)` ", REFERENCE, re.MULTILINE))
    assert written == {(method, f"/api/v1{path}") for method, path, _ in OPERATIONS.values()}
    for name, (_, _, operation) in OPERATIONS.items():
        assert f"`{name}`" in REFERENCE
        for parameter in operation.get("parameters", ()):
            assert f"`{parameter['name']}`" in REFERENCE or parameter["in"] == "path", parameter["name"]


def test_the_reference_has_every_model_and_field() -> None:
    for name, schema in OPENAPI["components"]["schemas"].items():
        section = re.search(rf"^### {name}\n(.*?)(?=^#|\Z)", REFERENCE, re.MULTILINE | re.DOTALL)
        assert section, f"docs/api.md has no section '### {name}'"
        wanted = [*schema.get("properties", {}), *schema.get("enum", ())]
        assert not [word for word in wanted if f"`{word}`" not in section[1]], name


def test_the_anchors_of_checks_are_there() -> None:
    text = (ROOT / CHECK_DOCUMENT).read_text(encoding="utf-8")
    assert set(CHECK_GROUPS) <= set(re.findall(r"^## (\w+)$", text.lower(), re.MULTILINE))


# -- kept to ---------------------------------------------------------------------------------------------------


def test_an_agent_serves_this_very_document_and_keeps_to_it(make_rig: MakeRig) -> None:
    """Many requests, right and wrong ones: no answer of 500 or above, none that the document does not have."""
    schemathesis = pytest.importorskip("schemathesis", reason="schemathesis is not installed")
    from hypothesis import HealthCheck, Phase, given, settings  # noqa: PLC0415
    from schemathesis import checks  # noqa: PLC0415

    rig = make_rig({"tally": {**TALLY, "shell": False, "allow": ["true"], "read": "true"}}, "site1")
    rig.start()
    agent = Agent(rig.url("site1"))
    agent.submit("counter", SubmitRequest(type="set", command="true", sites="site1"))
    served = msgspec.json.decode(rig.request("site1", "GET", "/api/v1/openapi.json"))
    assert served == msgspec.json.decode(msgspec.json.encode(OPENAPI))
    schema = schemathesis.openapi.from_dict(served)
    held = [
        checks.not_a_server_error,
        checks.status_code_conformance,
        checks.content_type_conformance,
        checks.response_schema_conformance,
    ]
    asked = set()
    for found in schema.get_all_operations():
        operation = found.ok()
        if operation.path.endswith("/events"):
            continue  # they never end; the tests of the API read them

        @given(case=operation.as_strategy())
        @settings(
            max_examples=settings().max_examples // 16,
            derandomize=True,
            deadline=None,
            database=None,
            phases=[Phase.explicit, Phase.generate],
            suppress_health_check=list(HealthCheck),
        )
        def keeps_to_it(case: Any) -> None:
            for name in ("timeout", "fresh", *(["wait"] if case.path.endswith("/changes") else [])):
                if name in (case.query or {}):
                    case.query[name] = 0  # nobody is to wait
            case.call_and_validate(base_url=f"{agent.url}/api/v1", checks=held, timeout=60)

        keeps_to_it()
        asked.add(operation.label)
    assert len(asked) == len(OPERATIONS) - 2
    assert agent.health().ok
    assert "bug in Cheops" not in rig.log("site1")

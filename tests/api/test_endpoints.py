"""Everything follows from the declaration of an endpoint: parameters are checked, and both clients can use it."""

import inspect
from typing import Annotated, Any

import pytest
from msgspec import Struct
from starlette.requests import Request

from cheops.api.app import api_mount
from cheops.api.endpoints import ENDPOINTS, PATH_PARAMETERS, TAGS, Endpoint
from cheops.api.endpoints.declaration import READ, header
from cheops.api.endpoints.resources import EXPLAIN_SCOPE, LIST_RESOURCES, SUBMIT_OPERATION, ResourceFilter
from cheops.api.endpoints.site import FORGET_SITE, HEALTH, ForgetParameters
from cheops.api.models.operations import SubmitRequest
from cheops.api.models.site import Sites
from cheops.api.request import HANDLERS, InvalidError, read_parameters
from cheops.client import Agent
from cheops.client.async_agent import AsyncAgent
from cheops.client.methods import AgentMethods, Method, call_of
from cheops.schema import doc


def request(query: str = "", headers: dict[str, str] | None = None) -> Request:
    raw = [(name.lower().encode(), value.encode()) for name, value in (headers or {}).items()]
    return Request({"type": "http", "method": "GET", "query_string": query.encode(), "headers": raw, "path": "/"})


def test_names_and_routes_are_unique() -> None:
    assert len({endpoint.name for endpoint in ENDPOINTS}) == len(ENDPOINTS)
    assert len({(endpoint.method, endpoint.path) for endpoint in ENDPOINTS}) == len(ENDPOINTS)
    assert {endpoint.tag for endpoint in ENDPOINTS} == set(TAGS)
    assert all(any(endpoint.path.startswith(path) for endpoint in ENDPOINTS) for path in PATH_PARAMETERS)


def test_every_endpoint_has_a_handler() -> None:
    node: Any = None  # the routes are only built
    assert len(api_mount(node).routes) == len(ENDPOINTS) + 1  # and the OpenAPI document


def test_an_endpoint_without_a_handler_is_named_at_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(HANDLERS, HEALTH)
    node: Any = None
    with pytest.raises(RuntimeError, match=r"endpoint \w+ \(GET /healthz\) has no handler: .*_SUBJECTS"):
        api_mount(node)


# -- parameters ------------------------------------------------------------------------------------------------


def test_parameters_have_their_types_and_defaults() -> None:
    found = read_parameters(ResourceFilter, request("limit=5&fresh=1.5&outcome=OK&limit=7&odd=1"))
    assert (found.limit, found.fresh, found.outcome, found.prefix) == (7, 1.5, "OK", "")
    assert read_parameters(ForgetParameters, request("force=true")).force
    given = read_parameters(SUBMIT_OPERATION.parameters, request("timeout=2", {"Cheops-Wait": "quorum"}))
    assert (given.timeout, given.wait, given.cheops_wait) == (2.0, None, "quorum")


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (True, ["true", "1", "yes", "on", "t", "y", "TRUE", "Yes", "ON", "T", "Y"]),
        (False, ["false", "0", "no", "off", "f", "n", "FALSE", "No", "OFF", "F", "N"]),
    ],
)
def test_booleans_have_several_words_in_upper_or_lower_case(value: bool, words: list[str]) -> None:
    for word in words:
        assert read_parameters(ForgetParameters, request(f"force={word}")).force is value, word


@pytest.mark.parametrize(
    ("endpoint", "query", "complaints"),
    [
        (LIST_RESOURCES, "limit=0", ["query parameter 'limit'", ">= 1"]),
        (LIST_RESOURCES, "limit=ten&fresh=nan", ["'limit'", "'fresh'"]),
        (LIST_RESOURCES, "overall=GOOD", ["'overall'", "GOOD"]),
        (LIST_RESOURCES, "overall=null", ["'overall'", "null"]),
        (LIST_RESOURCES, f"prefix={'x' * 257}", ["'prefix'", "256"]),
        (EXPLAIN_SCOPE, "", ["query parameter 'text' is missing"]),
        (FORGET_SITE, "force=perhaps", ["'force'", "bool"]),
    ],
)
def test_a_wrong_parameter_is_named(endpoint: Endpoint[Any, Any, Any], query: str, complaints: list[str]) -> None:
    with pytest.raises(InvalidError) as caught:
        read_parameters(endpoint.parameters, request(query))
    assert caught.value.status == 422
    assert not [one for one in complaints if one not in str(caught.value)]


# -- clients ---------------------------------------------------------------------------------------------------


class Parameters(Struct, frozen=True, kw_only=True, rename={"last_event_id": "Last-Event-ID"}):
    limit: Annotated[int, doc("How many.")] = 100
    force: Annotated[bool, doc("Whatever its state.")] = False
    last_event_id: Annotated[str, header("After this one.")] = ""


SAMPLE = Endpoint(
    name="sample",
    method="POST",
    path="/sites/{name}/samples/{op}",
    right=READ,
    tag="sites",
    summary="A sample",
    parameters=Parameters,
    body=SubmitRequest,
    response=Sites,
)


def test_a_call_has_what_the_endpoint_declares() -> None:
    parameters = Parameters(limit=5, force=True, last_event_id="x")
    call = call_of(SAMPLE, "a/b", "..", parameters=parameters, body=SubmitRequest(type="set"))
    assert (call.method, call.target) == ("POST", "/api/v1/sites/a%2Fb/samples/%2E%2E?limit=5&force=true")
    assert call.all_headers == {"Accept": "application/json", "Content-Type": "application/json", "Last-Event-ID": "x"}
    assert call.response is Sites
    assert call_of(SAMPLE, "a", "b", parameters=Parameters()).target == "/api/v1/sites/a/samples/b"
    assert call_of(HEALTH).statuses == (503,)
    with pytest.raises(TypeError):
        call_of(SAMPLE, "a", "b", "c")


def test_both_clients_have_the_methods_that_are_defined_once() -> None:
    shared = {name for name, value in vars(AgentMethods).items() if isinstance(value, Method)}
    assert len(shared) > 25
    for name in shared:
        assert getattr(Agent, name) is getattr(AsyncAgent, name)
    for name in ("submit", "answers", "events", "call", "send"):
        sync, async_ = (inspect.signature(getattr(client, name)).parameters for client in (Agent, AsyncAgent))
        assert set(async_) <= set(sync)

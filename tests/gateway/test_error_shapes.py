"""Errors of Cheops, as the clients of a service expect them."""

import json
from xml.etree import ElementTree as ET

import pytest

from cheops.gateway.error_shapes import shaped
from cheops.gateway.interfaces import Response
from cheops.gateway.responses import problem_response

DETAIL = "site9 & <b> is not known"


def body_of(response: Response) -> bytes:
    assert isinstance(response.body, bytes)
    return response.body


def problem(status: int, shape: str) -> Response:
    return shaped(problem_response("site1", status, DETAIL, fault="client"), shape)


def test_a_problem_stays_as_it_is() -> None:
    response = problem_response("site1", 422, DETAIL)
    assert shaped(response, "problem") is response


@pytest.mark.parametrize("shape", ["openstack", "kubernetes", "s3", "plain"])
@pytest.mark.parametrize("status", [400, 404, 409, 418, 422, 500, 503, 507])
def test_every_shape_says_what_is_wrong_and_keeps_status_and_headers(status: int, shape: str) -> None:
    before, response = problem_response("site1", status, DETAIL), problem(status, shape)
    assert response.status == status
    names = [name for name, _ in response.headers]
    assert sorted(names) == sorted(name for name, _ in before.headers)
    assert names.count("Content-Type") == 1
    assert "site9" in body_of(response).decode()


def test_kubectl_finds_a_status() -> None:
    said = json.loads(body_of(problem(409, "kubernetes")))
    assert (said["kind"], said["status"], said["reason"], said["code"]) == ("Status", "Failure", "Conflict", 409)
    assert said["message"] == DETAIL


def test_s3_clients_find_a_code_and_a_message() -> None:
    root = ET.fromstring(body_of(problem(403, "s3")))  # noqa: S314 - what was just written
    assert (root.tag, root.findtext("Code"), root.findtext("Message")) == ("Error", "AccessDenied", DETAIL)
    assert b"<Code>InvalidRequest</Code>" in body_of(problem(422, "s3"))


def test_openstack_clients_find_a_message() -> None:
    assert json.loads(body_of(problem(400, "openstack"))) == {
        "error": {"code": 400, "title": "Bad Request", "message": DETAIL}
    }

"""Errors of the gateway as answers: problem details (RFC 9457), as the agent's API has them."""

from email.utils import formatdate
from http import HTTPStatus

import msgspec

from cheops.errors import CheopsError
from cheops.gateway.errors import UpstreamError
from cheops.gateway.headers import EFFECT, SITE, site_name
from cheops.gateway.seam import Outgoing

MEDIA_TYPE = "application/problem+json"


def problem(
    here: str, status: int, detail: str, *, had_no_effect: bool = True, **members: object
) -> Outgoing:
    title = HTTPStatus(status).phrase
    body = {"type": "about:blank", "title": title, "status": status, "detail": detail, **members}
    headers = [
        ("Content-Type", MEDIA_TYPE),
        ("Date", formatdate(usegmt=True)),
        ("Cache-Control", "no-store"),
        (SITE, site_name(here)),
    ]
    if had_no_effect:
        headers.append((EFFECT, "none"))
    return Outgoing(status, tuple(headers), msgspec.json.encode(body))


def of_error(here: str, error: CheopsError, **members: object) -> Outgoing:
    had_no_effect = not (isinstance(error, UpstreamError) and error.may_have_had_effect)
    told = {"fault": error.fault.value, "definite": error.definite, **members}
    return problem(here, error.status, str(error), had_no_effect=had_no_effect, **told)


def of_mistake(here: str) -> Outgoing:
    return problem(
        here, 500, "this is a mistake in Cheops; the agent's log has the details", had_no_effect=False
    )

"""Replicated requests that are signed as S3's are: the signature covers method, path, query, Host and body."""

import hashlib
import hmac
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.agent.rig import until
from tests.gateway.service import Seen, Service
from tests.gateway.stage import Stage
from tests.gateway.test_sharing import all_up

SITES = ("site1", "site2")
HOST = "bucket.s3.example.org"
SECRET = b"AWS4wJalrXUtnFEMI"
DATE, SCOPE = "20261117T120000Z", "20261117/eu/s3/aws4_request"
SIGNED = ("content-md5", "content-type", "host", "x-amz-content-sha256", "x-amz-date")


def signature(method: str, target: str, headers: dict[str, str], body: bytes) -> str:
    """AWS Signature Version 4, for requests whose path and query need no encoding."""
    path, _, query = target.partition("?")
    lines = [f"{name}:{headers[name]}" for name in SIGNED]
    payload = hashlib.sha256(body).hexdigest()
    canonical = "\n".join([method, path, query, *lines, "", ";".join(SIGNED), payload])
    to_sign = "\n".join(["AWS4-HMAC-SHA256", DATE, SCOPE, hashlib.sha256(canonical.encode()).hexdigest()])
    key = SECRET
    for part in SCOPE.split("/"):
        key = hmac.digest(key, part.encode(), "sha256")
    return hmac.digest(key, to_sign.encode(), "sha256").hex()


def authorization(method: str, target: str, headers: dict[str, str], body: bytes) -> str:
    made = signature(method, target, headers, body)
    return f"AWS4-HMAC-SHA256 Credential=me/{SCOPE}, SignedHeaders={';'.join(SIGNED)}, Signature={made}"


def verifying(seen: Seen) -> tuple[int, dict[str, Any]]:
    """A service that refuses what is not signed by its client, or by this site itself."""
    headers = {name.lower(): value for name, value in seen.headers.items()}
    given = headers.get("authorization", "")
    if given == "Site-Key of-site2":
        return 200, {}
    if not set(SIGNED) <= headers.keys():
        return 403, {"error": "AccessDenied"}
    is_valid = given == authorization(seen.method, seen.path, headers, seen.body)
    return (200, {}) if is_valid else (403, {"error": "SignatureDoesNotMatch"})


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Stage]:
    key = tmp_path / "key"
    key.write_text("Authorization: Site-Key of-site2\n")
    key.chmod(0o600)
    tagging = {"match": "PUT /{key}?tagging", "is": "put tagging"}
    stage = Stage(tmp_path / "rig", SITES, ("image",), auth={"file": str(key)}, rules=[tagging])
    services = [Service(f"image of {site}", stage.own(site), verifying) for site in SITES]
    try:
        stage.rig.start()
        until(lambda: all_up(stage), "for the sites to see each other")
        yield stage
    finally:
        stage.rig.close()
        for one in services:
            one.close()


def test_a_signature_is_valid_at_the_site_that_takes_the_request(stage: Stage) -> None:
    body, target = b"<Tagging/>", "/key?tagging="
    headers = {
        "host": HOST,
        "content-type": "application/xml",
        "content-md5": "5vMxZVKFT+bnLDsnpVsEHQ==",
        "x-amz-date": DATE,
        "x-amz-content-sha256": hashlib.sha256(body).hexdigest(),
    }
    signed = {**headers, "Authorization": authorization("PUT", target, headers, body)}
    for scope in ("{image: site1}", "{image: site1 & site2}"):
        answer = stage.ask("site1", target, scope, method="PUT", body=body, headers={**signed, "Cheops-Wait": "all"})
        assert answer.status == 200, answer.body
    assert answer.headers["Cheops-Replicas"] == "site1; status=OK, site2; status=OK"
    forged = {**signed, "host": "other.s3.example.org"}
    assert stage.ask("site1", target, "{image: site1 & site2}", method="PUT", body=body, headers=forged).status == 403

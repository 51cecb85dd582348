"""`cheops scope rules`: what becomes of a request."""

from pathlib import Path

import pytest

from tests.support.command import run_here

SITE = """
site: site1
services:
  store: {url: "http://127.0.0.1:9000", rules: s3}
  images: {url: "http://127.0.0.1:9002", rules: docker-registry}
"""


def tried(folder: Path, *argv: str) -> list[str]:
    (folder / "site.yaml").write_text(SITE)
    done = run_here("scope", "rules", *argv, "--config", str(folder / "site.yaml"))
    assert done.code == 0, done.err
    return done.out.splitlines()


@pytest.mark.parametrize(
    ("service", "request_", "lines"),
    [
        ("store", "POST /b/k?uploads", ["does       opens upload", "it opens a session 'upload', at one site: "]),
        ("store", "PUT /b/k?partNumber=1&uploadId=u", ["does       uses upload", "it uses a session 'upload', "]),
        (
            "store",
            "POST /b/k?uploadId=u",
            ["resource   /b/k", "it completes a session 'upload': this is one operation"],
        ),
        ("store", "DELETE /b/k?uploadId=u", ["does       aborts upload", "it aborts a session 'upload': nothing"]),
        (
            "store",
            "PUT /b?versioning",
            ["does       refuse", "with '&', and for what is replicated, it is refused (422): "],
        ),
        ("images", "PATCH /v2/a/b/blobs/uploads/u?_state=s", ["does       uses upload"]),
        ("store", "PUT /b/k?unknown", ["'PUT /{bucket}/{key**}' does not list all members of its query"]),
        ("images", "HEAD /v2/a/blobs/sha256:1", ["does       read"]),
    ],
)
def test_requests_of_sessions_are_explained(tmp_path: Path, service: str, request_: str, lines: list[str]) -> None:
    found = tried(tmp_path, service, "--try", request_)
    for line in lines:
        assert any(one.startswith(line) for one in found), found


def test_what_must_be_there_first(tmp_path: Path) -> None:
    body = '{"config": {"digest": "sha256:1"}, "layers": [{"digest": "sha256:2"}]}'
    found = tried(tmp_path, "images", "--try", "PUT /v2/app/manifests/latest", "--body", body)
    assert "after      /v2/app/blobs/sha256:1, /v2/app/blobs/sha256:2" in found


def test_the_list(tmp_path: Path) -> None:
    found = " ".join(" ".join(tried(tmp_path, "images")).split())
    assert "blobs/uploads/{upload}?digest={digest} put, completes upload /v2/{name}/blobs/{digest}" in found


def test_what_is_never_or_not_allowed_to_be_replicated(tmp_path: Path) -> None:
    file = tmp_path / "site.yaml"
    file.write_text('site: site1\nservices: {app: {url: "http://127.0.0.1:9000", allow: ["PUT /a/*"]}}\n')

    def last(request: str) -> str:
        return run_here("scope", "rules", "app", "--try", request, "--config", str(file)).out.splitlines()[-1]

    assert last("POST /login").startswith("with '&', it is refused: 'POST /**/login' is never replicated")
    assert last("PUT /b").startswith("with '&', it is refused: services.app.allow does not have PUT /b")
    assert last("PUT /a/b") == "plain REST: it replaces what is at this path"
    assert last("GET /b") == "plain REST: it reads"


def test_without_a_file_it_says_how_to_name_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    done = run_here("scope", "rules", "kv", "--try", "GET /")
    assert (done.code, "--config FILE" in done.err) == (1, True), done.err


@pytest.mark.parametrize(
    ("request_", "said"),
    [
        ("PUT /a?trace=1", "plain REST: it replaces what is at this path"),
        ("PUT /a?lang=fr", "no rule explains its query: with '&', and for what is replicated, it is refused (422)"),
        ("PROPFIND /a", "plain REST: it reads"),
    ],
)
def test_plain_requests(tmp_path: Path, request_: str, said: str) -> None:
    file = tmp_path / "site.yaml"
    file.write_text('site: site1\nservices: {app: {url: "http://127.0.0.1:9000", rules: [{query: [trace]}]}}\n')
    assert run_here("scope", "rules", "app", "--try", request_, "--config", str(file)).out.splitlines() == [said]

"""Rules about requests: which are replicated, and which never are."""

from pathlib import Path

import pytest

from cheops.backends.http.payload import PayloadError, Request, command_of, leaves_service, request_of
from cheops.backends.http.rules import check_rules
from cheops.config.request_rules import LOGINS, RequestRule, first_match
from cheops.config.services import ReplicationConfig, ServiceConfig
from cheops.config.site import parse_site
from cheops.errors import ClientError


@pytest.mark.parametrize(
    ("rule", "matching", "others"),
    [
        ("/images", ["/images", "/images/", "//images"], ["/images/5", "/", "/imagesx"]),
        ("/images/*", ["/images/5"], ["/images", "/images/5/file"]),
        ("/images/**", ["/images", "/images/5", "/images/5/file"], ["/imagesx", "/other"]),
        ("/**/login", ["/login", "/a/login", "/a/b/login/"], ["/a/login/b", "/alogin"]),
        ("/**", ["/", "/a", "/a/b"], []),
        ("/a.c", ["/a.c"], ["/abc"]),
    ],
)
def test_a_pattern_of_paths(rule: str, matching: list[str], others: list[str]) -> None:
    one = RequestRule("POST", rule)
    assert all(one.matches("POST", path) for path in matching)
    assert not any(one.matches("POST", path) for path in others)
    assert not any(one.matches("PUT", path) for path in matching)
    assert all(RequestRule("*", rule).matches("PUT", path) for path in matching)


@pytest.mark.parametrize("path", ["/v3/auth/tokens", "/identity/v3/auth/tokens", "/v2.0/tokens", "/a/login"])
def test_logins_are_never_replicated(path: str) -> None:
    assert first_match(LOGINS, "POST", path)
    service = ServiceConfig("image", "http://a", replication=ReplicationConfig())
    for spelled in (path, path.replace("/", "//"), f"{path}/", path.replace("o", "%6f")):
        with pytest.raises(ClientError, match="is never replicated"):
            check_rules(service, Request(method="POST", path=spelled))


def test_only_what_is_listed_is_allowed() -> None:
    config = ReplicationConfig(allow=(RequestRule("PUT", "/images/*"),))
    service = ServiceConfig("image", "http://a", replication=config)
    check_rules(service, Request(method="PUT", path="/images/5"))
    for method, path in (("PUT", "/images"), ("DELETE", "/images/5"), ("PUT", "/users/5")):
        with pytest.raises(ClientError, match="allow does not have"):
            check_rules(service, Request(method=method, path=path))


def test_an_empty_list_allows_nothing_and_no_list_everything(tmp_path: Path) -> None:
    text = "site: a\nsecurity: none\nservices: {image: {url: 'http://127.0.0.1:1', listen: '127.0.0.1:2'%s}}\n"
    request = Request(method="PUT", path="/images/5")
    check_rules(parse_site(text % "", tmp_path / "a.yaml").services["image"], request)
    with pytest.raises(ClientError, match="allow does not have"):
        check_rules(parse_site(text % ", allow: []", tmp_path / "a.yaml").services["image"], request)


@pytest.mark.parametrize(
    "path", ["/a/../b", "/a/%2e%2E/b", "/a/..%2fb", "/a/%252e%252e/b", "/a%5c..%5cb", "/a%00", "/a%0d"]
)
def test_paths_that_leave_the_service(path: str) -> None:
    assert leaves_service(path)
    with pytest.raises(PayloadError):
        request_of(command_of(Request(method="PUT", path=path)))


@pytest.mark.parametrize("path", ["/a/b", "/a..b/c", "/...", "/a%2Fb", "/100%25", "/%C3%BC", "/a b"])
def test_paths_that_do_not(path: str) -> None:
    assert not leaves_service(path)


@pytest.mark.parametrize("name", ["X-Auth-Token", "x_auth_token", "AUTHORIZATION", "Set-Own", "set_own"])
def test_a_header_with_credentials_in_every_spelling(name: str) -> None:
    config = ReplicationConfig(credential_headers=("X-Auth-Token", "Authorization", "Set_Own"))
    assert config.is_credential(name)
    with pytest.raises(PayloadError, match="credentials in it"):
        check_rules(
            ServiceConfig("image", "http://a", replication=config),
            Request(method="PUT", path="/a", headers=((name, "x"),)),
        )

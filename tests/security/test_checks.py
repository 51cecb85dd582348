"""The group `security` of `cheops check`: every warning and failure has a hint and a place in the documentation."""

import re
from collections.abc import Iterator

import pytest

from cheops.api.checks import SECURITY_DOCUMENT, _expiry, _refusals, _services
from cheops.api.models.site import Check, Level
from cheops.config.site import parse_site
from cheops.security.principal import Role
from cheops.security.refusals import Refused
from tests.agent.rig import Rig
from tests.security.clients import ask, local, made, rig_of
from tests.support.command import ROOT, run_process

DAY_S = 86_400.0


@pytest.fixture(scope="module")
def rig(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    """A site with certificates, and nearly everything that can be warned of."""
    found = rig_of(tmp_path_factory.mktemp("checks"))
    try:
        found.start()
        made(found, "for-ever", Role.VIEWER, lasts_s=None)
        ask(found, "GET", "/api/v1/resources", secret="cheops_" + "a" * 43)
        yield found
    finally:
        found.close()


def security(rig: Rig) -> dict[str, Check]:
    return {check.name: check for check in local(rig).check().checks if check.group == "security"}


def test_what_is_warned_of(rig: Rig) -> None:
    found = security(rig)
    levels = {name: check.level for name, check in found.items()}
    assert levels["sites authenticate with certificates"] is Level.OK
    assert levels["this site's certificate is valid"] is Level.OK
    assert levels["the authority's certificate is valid"] is Level.OK
    assert levels["only this user can read secrets"] is Level.OK
    assert levels["only this user can read the store"] is Level.OK
    assert levels["1 token never expires"] is Level.WARNING
    assert levels["type file: every command is allowed"] is Level.WARNING
    assert levels["type file: commands run in a shell"] is Level.WARNING
    assert "for-ever" in found["1 token never expires"].detail
    assert "unknown token: 1" in found["1 request was refused in the last 10 minutes"].detail


def test_keys_that_others_can_read_are_a_failure(rig: Rig) -> None:
    key = rig.folder("site1") / "tls" / "site.key"
    key.chmod(0o640)
    try:
        found = security(rig)["secrets are not protected"]
        assert (found.ok, found.level) == (False, Level.FAILED)
        assert f"{key} has mode 640" in found.detail
        said = run_process("check", "--url", f"unix://{rig.folder('site1') / 'data' / 'agent.sock'}")
        assert said.code == 1
        assert "chmod 600" in said.out
    finally:
        key.chmod(0o600)
    assert security(rig)["only this user can read secrets"].level is Level.OK


def test_each_has_a_hint_and_a_section_of_the_documentation(rig: Rig) -> None:
    text = (ROOT / SECURITY_DOCUMENT).read_text(encoding="utf-8")
    sections = {
        re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-")
        for title in re.findall(r"^##+ (.*)$", text, re.MULTILINE)
    }
    for check in security(rig).values():
        assert check.level is Level.OK or check.hint, check.name
        document, _, anchor = check.anchor.partition("#")
        assert document != SECURITY_DOCUMENT or anchor in sections, check.anchor


@pytest.mark.parametrize(
    ("left_days", "level", "said"),
    [
        (200.0, Level.OK, "200 more days"),
        (16.0, Level.OK, "16"),
        (14.0, Level.WARNING, "14"),
        (-2.0, Level.FAILED, "it has expired: 2.0 days ago"),
    ],
)
def test_a_certificate_that_is_not_renewed_in_time(left_days: float, level: Level, said: str) -> None:
    check = _expiry("it", left_days * DAY_S, 30 * DAY_S, "renew")
    assert check.level is level
    assert said in f"{check.name}: {check.detail}"


def test_without_certificates_and_with_plain_http_on_a_network() -> None:
    text = "site: a\nservices: {image: {url: 'http://10.1.2.3:8080'}, here: {url: 'http://127.0.0.1:81'}, tls: {url: 'https://h'}}\n"
    config = parse_site(text, ROOT / "site.yaml")
    (check,) = _services(config)
    assert check.level is Level.WARNING
    assert "http://10.1.2.3:8080 is plain HTTP over a network" in check.detail


def test_refusals_of_long_ago_are_only_counted() -> None:
    old, new = (Refused("wrong signature", "thief", 3, at_s, "") for at_s in (1_000.0, 9_990.0))
    assert _refusals([old], 10_000.0).level is Level.OK
    assert "3 since the start" in _refusals([old], 10_000.0).detail
    assert _refusals([old, new], 10_000.0).level is Level.WARNING

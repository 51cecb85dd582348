"""What a configuration file says of security, and which addresses that allows."""

from pathlib import Path

import pytest

from cheops.config.security import SecurityConfig
from cheops.config.site import SiteConfig, parse_site
from cheops.yaml_file import YamlFileError


def read(folder: Path, text: str) -> SiteConfig:
    return parse_site(f"site: a\n{text}", folder / "site.yaml")


def refused(folder: Path, text: str) -> str:
    with pytest.raises(YamlFileError) as caught:
        read(folder, text)
    return str(caught.value).removeprefix(f"{folder}/site.yaml:")


def test_none_differs_from_unspecified(tmp_path: Path) -> None:
    unspecified, none = read(tmp_path, "").security, read(tmp_path, "security: none").security
    assert (unspecified.is_specified, unspecified.is_on) == (False, False)
    assert (none.is_specified, none.is_on) == (True, False)
    assert read(tmp_path, "security: {}").security == SecurityConfig(tmp_path / "tls")


def test_all_settings(tmp_path: Path) -> None:
    text = "{folder: /etc/tls, ca_key: ca/ca.key, clock_skew: 5s, renew_before: 10d, valid_for: 36h}"
    assert read(tmp_path, f"security: {text}").security == SecurityConfig(
        Path("/etc/tls"), tmp_path / "ca" / "ca.key", 5.0, 864_000.0, valid_for_s=129_600.0
    )


def test_with_security_everything_is_https(tmp_path: Path) -> None:
    config = read(
        tmp_path,
        "security: {}\nlisten: 10.0.0.1:8079\npeers: {b: https://10.0.0.2:8079}\n"
        "services: {image: {url: 'http://127.0.0.1:1', listen: '10.0.0.1:2'}}\ngateway: {listen: '0.0.0.0:3'}",
    )
    assert config.advertise == "https://10.0.0.1:8079"
    assert config.gateway.advertise == "https://10.0.0.1:3"
    assert config.service_urls == (("image", "https://10.0.0.1:3"),)


def test_without_it_gateways_use_the_addresses_of_services(tmp_path: Path) -> None:
    services = "services: {image: {url: 'http://127.0.0.1:1', listen: '127.0.0.1:2'}}"
    assert read(tmp_path, f"security: none\n{services}").service_urls == (("image", "http://127.0.0.1:2"),)


OPEN = "can be reached over a network, and 'security: none' is only for addresses of this machine"
BAD = [
    ("security: off", "2: security: expected 'none', or settings such as {folder: tls}"),
    ("security: {fold: x}", "2: security.fold: unknown key; did you mean 'folder'?"),
    ("security: {valid_for: 900d}", "2: security.valid_for: expected a duration from 1s to 825d"),
    ("security: {renew_before: 30}", "2: security.renew_before: '30' has no unit; write 30d or 30h"),
    ("security: none\nlisten: 10.0.0.1:8079", f"3: listen: 'listen' {OPEN}"),
    ("security: none\nlisten: 0.0.0.0:8079", f"3: listen: 'listen' {OPEN}"),
    ("security: none\nadvertise: http://a.example:1", f"3: advertise: 'advertise' {OPEN}"),
    ("security: none\npeers:\n  b: http://10.0.0.2:1", f"4: peers.b: 'peers.b' {OPEN}"),
    (
        "security: none\nservices: {image: {url: 'http://127.0.0.1:1', listen: '0.0.0.0:2'}}",
        f"3: services: 'services.image.listen' {OPEN}",
    ),
    (
        "security: none\nservices: {image: {url: 'http://127.0.0.1:1', outbound: '10.0.0.1:2'}}",
        f"3: services: 'services.image.outbound' {OPEN}",
    ),
    ("security: none\ngateway: {proxy: '10.0.0.1:2'}", f"3: gateway: 'gateway.proxy' {OPEN}"),
    (
        "security: none\npeers: {b: 'https://127.0.0.1:1'}",
        "3: peers.b: 'peers.b' must be http://127.0.0.1:1, because there are no certificates",
    ),
    (
        "security: {}\npeers: {b: 'http://10.0.0.2:1'}",
        "3: peers.b: 'peers.b' must be https://10.0.0.2:1, because agents speak TLS with each other",
    ),
    (
        "security: {}\nadvertise: http://10.0.0.1:1",
        "3: advertise: 'advertise' must be https://10.0.0.1:1, because agents speak TLS with each other",
    ),
    (
        "security: none\ngateway: {listen: '127.0.0.1:2'}",
        "3: gateway.listen: this is for gateways that show certificates, and there are none",
    ),
    ("security: {}\ngateway: {advertise: 'https://a:2'}", "3: gateway.advertise: without 'listen' there is"),
    (
        "security: {}\ngateway: {listen: '127.0.0.1:2', advertise: 'http://a:2'}",
        "3: gateway.advertise: gateways speak TLS with each other, so this starts with https://",
    ),
]


@pytest.mark.parametrize(("text", "complaint"), BAD, ids=[complaint for _, complaint in BAD])
def test_what_does_not_fit_is_refused(tmp_path: Path, text: str, complaint: str) -> None:
    assert refused(tmp_path, text).startswith(complaint)


def test_services_that_others_cannot_reach_are_doubtful(tmp_path: Path) -> None:
    text = "security: {}\npeers: {b: 'https://b:1'}\nlisten: 10.0.0.1:1\n"
    config = read(tmp_path, f"{text}services: {{image: {{url: 'http://127.0.0.1:1'}}}}")
    assert any(warning.startswith("gateway.listen: without it") for warning in config.warnings)

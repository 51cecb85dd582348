"""The gateway in the configuration file: defaults that depend on other settings, and what is refused."""

from pathlib import Path

import pytest

from cheops.config.address import Address
from cheops.config.gateway import GatewayConfig
from cheops.config.site import SiteConfig, parse_site
from cheops.yaml_file import YamlFileError


def site(services: str = "", more: str = "") -> SiteConfig:
    text = f"site: a\nlisten: 0.0.0.0:8079\nadvertise: http://10.0.0.1:8079\n{more}\nservices: {{{services}}}\n"
    return parse_site(text, Path("/x/site.yaml"))


def test_where_other_sites_reach_a_service() -> None:
    config = site(
        "one: {url: 'http://127.0.0.1:1', listen: '0.0.0.0:9000'}, "
        "two: {url: 'http://127.0.0.1:2', listen: '10.0.0.7:9001'}, "
        "three: {url: 'http://127.0.0.1:3', listen: '0.0.0.0:9002', advertise: 'http://nat.example:80'}, "
        "four: {url: 'http://127.0.0.1:4'}"
    )
    urls = {name: service.listener.advertise for name, service in config.services.items()}
    assert urls == {
        "one": "http://10.0.0.1:9000",
        "two": "http://10.0.0.7:9001",
        "three": "http://nat.example",
        "four": "",
    }
    assert config.gateway == GatewayConfig()


def test_all_places_to_listen_at() -> None:
    config = site(
        "image: {url: 'http://127.0.0.1:1', listen: '10.0.0.1:9000', outbound: '127.0.0.1:9001'}",
        "gateway: {proxy: '127.0.0.1:3128'}",
    )
    assert list(config.listeners) == [
        ("services.image.listen", Address("10.0.0.1", 9000)),
        ("services.image.outbound", Address("127.0.0.1", 9001)),
        ("gateway.proxy", Address("127.0.0.1", 3128)),
    ]
    assert config.services["image"].hosts == ("image",)


def test_doubts() -> None:
    config = site("image: {url: 'http://127.0.0.1:1', listen: '127.0.0.1:9000', outbound: '10.0.0.1:9001'}")
    unreachable, too_open = (one for one in config.warnings if one.startswith("services"))
    assert "other sites cannot send requests for image here" in unreachable
    assert "meant for the application of this site alone" in too_open


@pytest.mark.parametrize(
    ("services", "more", "complaint"),
    [
        ("image: {url: 'http://h', listen: 9000}", "", "expected host:port"),
        ("image: {url: 'http://h', advertise: 'http://h:1'}", "", "without 'listen'"),
        ("image: {url: 'http://h', listen: '10.0.0.1:8079'}", "", "'listen' and 'services.image.listen' both listen"),
        (
            "a: {url: 'http://h', listen: '127.0.0.1:1'}, b: {url: 'http://h', outbound: '127.0.0.1:1'}",
            "",
            "'services.a.listen' and 'services.b.outbound' both listen at port 1",
        ),
        ("a: {url: 'http://127.0.0.1:9000', listen: '127.0.0.1:9000'}", "", "of this gateway itself"),
        ("a: {url: 'http://h', hosts: [x]}, b: {url: 'http://i', hosts: [X]}", "", "'x' is the host name of both a and b"),
        ("a: {url: 'http://h', hosts: ['x:80']}", "", "a host name without a port"),
        ("a: {url: 'http://h', carriers: [Scope]}", "", "a header that the application passes on"),
        ("a: {url: 'http://h', carriers: [Cheops-Hop]}", "", "a header that the application passes on"),
        ("a: {url: 'http://h', carriers: [x, X]}", "", "different names of headers"),
        ("", "gateway: {head_size: 1B}", "from 1KiB to 1MiB"),
        ("", "gateway: {keepalive: 1s}", "did you mean 'keep_alive'?"),
        ("", "gateway: {connections: 0}", "a whole number from 1"),
    ],
)  # fmt: skip
def test_what_is_refused(services: str, more: str, complaint: str) -> None:
    with pytest.raises(YamlFileError) as caught:
        site(services, more)
    assert complaint in str(caught.value)

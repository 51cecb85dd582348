"""TLS of services: towards clients, at `listen`, and towards the service, with certificates of an own authority."""

import datetime as dt
import http.client
import json
import shutil
import ssl
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.agent.rig import PATIENCE_S, until
from tests.gateway.service import Service
from tests.gateway.service_certificates import DAY, Authority
from tests.gateway.stage import Answer, Stage, both_planes
from tests.gateway.test_sharing import all_up

plane = both_planes
NAME = "image.test"


def configure(stage: Stage, site: str, **settings: Any) -> None:
    path = stage.rig.folder(site) / "site.yaml"
    config = yaml.safe_load(path.read_text())
    config["services"]["image"].update(settings)
    path.write_text(yaml.safe_dump(config))


def https_url(stage: Stage, site: str) -> str:
    return f"https://127.0.0.1:{stage.own(site)}"


@contextmanager
def running(stage: Stage, *services: Service) -> Iterator[Stage]:
    try:
        stage.rig.start()
        yield stage
    finally:
        stage.rig.close()
        for one in services:
            one.close()


# -- towards clients ---------------------------------------------------------------------------------------


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path / "pki")


def ask(stage: Stage, context: ssl.SSLContext, target: str = "/") -> tuple[Answer, str]:
    """An answer over TLS, and the serial number of the certificate that the gateway showed."""
    with closing(http.client.HTTPSConnection(*stage.address("site1"), context=context, timeout=PATIENCE_S)) as made:
        made.request("GET", target, headers={"Host": NAME})
        assert isinstance(made.sock, ssl.SSLSocket)
        serial = str((made.sock.getpeercert() or {})["serialNumber"])
        return Answer(made.getresponse()), serial


def reports(stage: Stage) -> dict[str, str]:
    """The checks that did not pass, and their details."""
    checks = json.loads(stage.rig.request("site1", "GET", "/api/v1/check"))["checks"]
    return {one["name"]: one["detail"] for one in checks if one["level"] != "ok"}


def secured(base: Path, authority: Authority, plane: str, **tls: str) -> Stage:
    certificate, key = authority.issue("gateway", "127.0.0.1", NAME)
    stage = Stage(base / "rig", ("site1",), ("image",), plane=plane, gateway={"forwarded_headers": "all"})
    configure(stage, "site1", tls={"certificate": str(certificate), "key": str(key), **tls})
    return stage


def test_clients_use_https_and_the_service_learns_that(tmp_path: Path, authority: Authority, plane: str) -> None:
    stage = secured(tmp_path, authority, plane)
    service = Service("image", stage.own("site1"))
    with running(stage, service):
        for _ in range(2):
            answer, _ = ask(stage, authority.client())
            assert (answer.status, answer.json["served_by"]) == (200, "image")
            headers = {name.lower(): value for name, value in answer.json["headers"].items()}
            assert headers["x-forwarded-proto"] == "https"
            assert "proto=https" in headers["forwarded"]
        with pytest.raises((OSError, http.client.HTTPException)):
            stage.ask("site1")


def test_clients_must_show_a_certificate_if_they_are_told_to(tmp_path: Path, authority: Authority, plane: str) -> None:
    clients = Authority(tmp_path / "clients")
    stage = secured(tmp_path, authority, plane, client_ca=str(clients.file))
    service = Service("image", stage.own("site1"))
    with running(stage, service):
        with pytest.raises((OSError, http.client.HTTPException)):
            ask(stage, authority.client())
        stranger = authority.client()
        stranger.load_cert_chain(*authority.issue("stranger"))
        with pytest.raises((OSError, http.client.HTTPException)):
            ask(stage, stranger)
        known = authority.client()
        known.load_cert_chain(*clients.issue("known"))
        assert ask(stage, known)[0].status == 200


def test_a_new_certificate_is_used_when_its_files_are_replaced(
    tmp_path: Path, authority: Authority, plane: str
) -> None:
    stage = secured(tmp_path, authority, plane)
    service = Service("image", stage.own("site1"))
    with running(stage, service):
        _, before = ask(stage, authority.client())
        certificate, key = authority.folder / "gateway.crt", authority.folder / "gateway.key"
        later = authority.issue("later", "127.0.0.1", NAME)
        assert "certificate for clients of image expires soon" in reports(stage)
        shutil.copy(later[0], certificate)  # without its key, for a moment: the old ones stay in use
        assert ask(stage, authority.client())[1] == before
        until(lambda: "the key is not that of the certificate" in str(reports(stage)), "for the report of this")
        shutil.copy(later[1], key)
        until(lambda: ask(stage, authority.client())[1] != before, "for the new certificate")


def test_check_reports_a_certificate_that_has_ended(tmp_path: Path, authority: Authority, plane: str) -> None:
    stage = secured(tmp_path, authority, plane)
    authority.issue("gateway", "127.0.0.1", NAME, ends_in=-DAY)
    with running(stage):
        assert "certificate for clients of image has expired" in reports(stage)


def test_an_agent_without_its_certificate_does_not_start(tmp_path: Path, authority: Authority, plane: str) -> None:
    stage = secured(tmp_path, authority, plane)
    (authority.folder / "gateway.key").unlink()
    with pytest.raises(AssertionError, match=r"gateway\.key cannot be read"):
        stage.rig.start()
    stage.rig.close()


# -- towards the service -----------------------------------------------------------------------------------


def trusting(authority: Authority, stage: Stage, site: str, **more: str) -> dict[str, Any]:
    return {"url": https_url(stage, site), "ca": str(authority.file), "server_name": NAME, **more}


def test_a_service_with_an_own_authority_that_wants_certificates(
    tmp_path: Path, authority: Authority, plane: str
) -> None:
    """Requests that are passed on, and replicated ones."""
    sites = ("site1", "site2")
    stage = Stage(tmp_path / "rig", sites, ("image",), plane=plane)
    certificate, key = authority.issue("client-of-image")
    services = []
    for site in sites:
        configure(stage, site, **trusting(authority, stage, site, client_cert=str(certificate), client_key=str(key)))
        services.append(
            Service(f"image of {site}", stage.own(site), tls=authority.server(f"{site}-image", NAME, clients=True))
        )
    with running(stage, *services):
        until(lambda: all_up(stage), "for the sites to see each other")
        for _ in range(2):
            assert stage.ask("site1").json["served_by"] == "image of site1"
            assert stage.ask("site1", scope="{image: site2}").json["served_by"] == "image of site2"
        answer = stage.ask(
            "site1", "/a", "{image: site1 & site2}", method="PUT", body=b"{}", headers={"Cheops-Wait": "all"}
        )
        assert answer.status == 200
        assert answer.headers["Cheops-Replicas"] == "site1; status=OK, site2; status=OK"


def test_a_service_that_is_known_by_its_address(tmp_path: Path, authority: Authority, plane: str) -> None:
    """HAProxy cannot verify that, so the agent does."""
    stage = Stage(tmp_path / "rig", ("site1",), ("image",), plane=plane)
    configure(stage, "site1", url=https_url(stage, "site1"), ca=str(authority.file))
    service = Service("image", stage.own("site1"), tls=authority.server("image", "127.0.0.1"))
    with running(stage, service):
        for _ in range(2):
            assert stage.ask("site1").json["served_by"] == "image"


def finding(stage: Stage) -> dict[str, Any]:
    """What `cheops check` says about the connection to the service."""
    checks = json.loads(stage.rig.request("site1", "GET", "/api/v1/check"))["checks"]
    (found,) = (one for one in checks if one["name"] == "image accepts connections")
    return dict(found)


@pytest.mark.parametrize(
    ("fault", "detail", "hint"),
    [
        ("", "TLSv1.3, certificate of image.test", ""),
        ("authority", "unknown authority", "set 'services.image.ca'"),
        ("other authority", "unknown authority", "is not the authority of this service"),
        ("name", "another name", "it is for other.test: set 'services.image.server_name'"),
        ("expired", "has expired", "renew the certificate"),
        ("client certificate", "requires a client certificate", "set 'services.image.client_cert'"),
        ("plain", "does not speak TLS", "write http://"),
        ("file", "cannot be read", "fix the files"),
    ],
)
def test_check_says_what_is_wrong_and_what_to_set(  # noqa: PLR0913, PLR0917 - a fault, and what is said about it
    fault: str, detail: str, hint: str, tmp_path: Path, authority: Authority, plane: str
) -> None:
    stage = Stage(tmp_path / "rig", ("site1",), ("image",), plane=plane)
    settings = trusting(authority, stage, "site1")
    if fault == "authority":
        del settings["ca"]
    elif fault == "other authority":
        settings["ca"] = str(Authority(tmp_path / "other").file)
    elif fault == "file":
        settings["ca"] = str(tmp_path / "missing.pem")
    configure(stage, "site1", **settings)
    host = "other.test" if fault == "name" else NAME
    ends_in = -DAY if fault == "expired" else dt.timedelta(days=1)
    context = authority.server("image", host, clients=fault == "client certificate", ends_in=ends_in)
    service = Service("image", stage.own("site1"), tls=None if fault == "plain" else context)
    with running(stage, service):
        found = finding(stage)
        assert detail in found["detail"]
        assert hint in found["hint"]
        assert found["level"] == ("failed" if fault else "ok")
        answer = stage.ask("site1")
        assert answer.status == (502 if fault else 200)
        if fault and (plane, fault) != ("haproxy", "client certificate"):  # HAProxy reports no alert
            assert detail in answer.json["detail"]

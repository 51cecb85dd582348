"""Three sites on hosts of their own, over TLS, through a cut."""

import contextlib
import http.client

import pytest

from tests.agent.rig import MakeRig, make_rig, until
from tests.security.sites import NOTE, TYPES, all_up, refused, states
from tests.wan import Wan
from tests.wan.fixtures import make_wan, wan

__all__ = ["make_rig", "make_wan", "wan"]


def test_sites_over_tls_go_on_after_a_cut(make_rig: MakeRig, wan: Wan) -> None:
    rig = make_rig(TYPES, wan=wan)
    rig.start()
    all_up(rig)
    assert all(rig.url(site).startswith("https://") for site in rig.names)

    def set_page(site: str, text: str) -> None:
        (rig.base / text).write_text(text)
        line = rig.exec_here(site, "page", "set", f"cp {rig.base / text} page")
        assert line["Status"] == "OK", line

    rig.exec("site1", "page", "set", "cp site.yaml page", **NOTE)
    wan.isolate("site1")
    until(lambda: states(rig, "site2")["site1"] == "down")
    set_page("site1", "alone")
    set_page("site2", "together")
    wan.heal()
    all_up(rig)

    def pages() -> set[str]:
        return {said["Output"] for said in rig.show("site3", "page").values()}

    until(lambda: len(pages()) == 1 and pages() <= {"alone", "together"}, f"for one page: {pages()}")
    for site in rig.names:
        assert "Traceback" not in rig.log(site)
        assert refused(rig, site, "certificate of unknown authority") == 0


def test_plain_http_over_a_network_is_not_answered(make_rig: MakeRig, wan: Wan) -> None:
    rig = make_rig(TYPES, "site1", wan=wan)
    rig.start()
    host = wan.hosts["site1"]
    with contextlib.closing(http.client.HTTPConnection(host.address, 8079, timeout=10)) as plain:
        plain.sock = host.socket()
        plain.sock.settimeout(10)
        plain.sock.connect((host.address, 8079))
        plain.request("GET", "/healthz")
        with pytest.raises((OSError, http.client.HTTPException)):
            plain.getresponse()

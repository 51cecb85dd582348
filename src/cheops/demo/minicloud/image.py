"""The image service: keeps images (a description and a file) in a folder, and nothing else.

python image.py --port 9292 --data ./images
"""

import argparse
import json
import threading
from hashlib import sha256
from pathlib import Path
from uuid import uuid4

from rest import ProblemError, Request, Response, check_match, etag, serve

_FIXED = ("id", "size", "sha256", "status")


class Images:
    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._folder.mkdir(parents=True, exist_ok=True)
        self._lock = threading.Lock()

    def create(self, request: Request) -> Response:
        wanted = request.json()
        if not isinstance(wanted.get("name"), str) or not wanted["name"]:
            raise ProblemError(400, "an image needs a name")
        image = {**wanted, "id": str(uuid4()), "size": 0, "sha256": "", "status": "queued"}
        with self._lock:
            if any(one["name"] == image["name"] for one in self._all()):
                raise ProblemError(409, f"there is an image '{image['name']}' already")
            self._write(image)
        return Response(201, image, {"Location": f"/images/{image['id']}", "ETag": etag(image)})

    def index(self, _request: Request) -> Response:
        with self._lock:
            return Response(body={"images": self._all()})

    def get(self, request: Request) -> Response:
        image = self._read(request.names["id"])
        return Response(body=image, headers={"ETag": etag(image)})

    def replace(self, request: Request) -> Response:
        return self._changed(request, lambda old, new: {key: old[key] for key in _FIXED} | new)

    def update(self, request: Request) -> Response:
        return self._changed(request, lambda old, new: old | new)

    def _changed(self, request: Request, change) -> Response:
        new = {key: value for key, value in request.json().items() if key not in _FIXED}
        with self._lock:
            old = self._read(request.names["id"])
            check_match(request, old)
            image = change(old, new)
            self._write(image)
        return Response(body=image, headers={"ETag": etag(image)})

    def delete(self, request: Request) -> Response:
        with self._lock:
            image = self._read(request.names["id"])
            check_match(request, image)
            self._path(image["id"]).unlink()
            self._file(image["id"]).unlink(missing_ok=True)
        return Response(204)

    def upload(self, request: Request) -> Response:
        image = self._read(request.names["id"])
        digest, size, partial = sha256(), 0, self._file(f"{image['id']}-{uuid4().hex}")
        with partial.open("wb") as file:
            for piece in request.pieces():
                digest.update(piece)
                size += len(piece)
                file.write(piece)
        with self._lock:
            image = self._read(image["id"])
            partial.replace(self._file(image["id"]))
            image |= {"size": size, "sha256": digest.hexdigest(), "status": "active"}
            self._write(image)
        return Response(204)

    def download(self, request: Request) -> Response:
        image = self._read(request.names["id"])
        if image["status"] != "active":
            raise ProblemError(409, f"the image '{image['name']}' has no file yet")
        file = self._file(image["id"]).open("rb")
        headers = {"Content-Type": "application/octet-stream", "Content-Length": str(image["size"])}
        return Response(body=_pieces(file), headers=headers)

    def _all(self) -> list[dict]:
        images = (json.loads(path.read_text()) for path in self._folder.glob("*.json"))
        return sorted(images, key=lambda image: image["name"])

    def _read(self, id_: str) -> dict:
        try:
            return json.loads(self._path(id_).read_text())
        except (FileNotFoundError, ValueError):
            raise ProblemError(404, f"there is no image {id_}") from None

    def _write(self, image: dict) -> None:
        partial = self._folder / f"{image['id']}.new"  # not *.json: half an image is none
        partial.write_text(json.dumps(image))
        partial.replace(self._path(image["id"]))

    def _path(self, id_: str) -> Path:
        return self._folder / f"{id_}.json"

    def _file(self, id_: str) -> Path:
        return self._folder / f"{id_}.image"


def _pieces(file):
    with file:
        while piece := file.read(64 * 1024):
            yield piece


def main() -> None:
    parser = argparse.ArgumentParser(description="Keeps images.")
    parser.add_argument("--port", type=int, default=9292)
    parser.add_argument("--data", type=Path, default=Path("images"))
    options = parser.parse_args()
    images = Images(options.data)
    routes = [
        ("POST", "/images", images.create),
        ("GET", "/images", images.index),
        ("GET", "/images/{id}", images.get),
        ("PUT", "/images/{id}", images.replace),
        ("PATCH", "/images/{id}", images.update),
        ("DELETE", "/images/{id}", images.delete),
        ("PUT", "/images/{id}/file", images.upload),
        ("GET", "/images/{id}/file", images.download),
    ]
    serve("image", options.port, routes)


if __name__ == "__main__":
    main()

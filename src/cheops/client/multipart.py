"""A form with files as the body of a request, read from disk while it is sent."""

import secrets
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

_CHUNK = 1 << 20


@dataclass(frozen=True, slots=True)
class Form:
    """Fields and files, by name; the files are not read before they are sent."""

    fields: dict[str, str]
    files: dict[str, Path]
    boundary: str = field(default_factory=lambda: f"cheops-{secrets.token_hex(16)}")

    @property
    def content_type(self) -> str:
        return f"multipart/form-data; boundary={self.boundary}"

    @property
    def length(self) -> int:
        return sum(part.stat().st_size if isinstance(part, Path) else len(part) for part in self._parts())

    def __iter__(self) -> Iterator[bytes]:
        for part in self._parts():
            if isinstance(part, bytes):
                yield part
            else:
                with part.open("rb") as file:
                    while chunk := file.read(_CHUNK):
                        yield chunk

    def _parts(self) -> Iterator[bytes | Path]:
        for name, value in self.fields.items():
            yield self._head(f'name="{_quoted(name)}"') + value.encode() + b"\r\n"
        for name, path in self.files.items():
            yield self._head(f'name="{_quoted(name)}"; filename="{_quoted(name)}"')
            yield path
            yield b"\r\n"
        yield f"--{self.boundary}--\r\n".encode()

    def _head(self, disposition: str) -> bytes:
        return f"--{self.boundary}\r\nContent-Disposition: form-data; {disposition}\r\n\r\n".encode()


def _quoted(name: str) -> str:
    """As browsers do: these three signs would end the name, or the line."""
    return name.replace('"', "%22").replace("\r", "%0D").replace("\n", "%0A")

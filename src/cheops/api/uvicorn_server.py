"""uvicorn's server and its protocol, without its command line.

`import uvicorn` imports `uvicorn.main`, and with it click, multiprocessing and the supervisors of worker processes:
1.5 MB that an agent never uses. Here they are imported when somebody asks for one of their names.
"""

import sys
from importlib import import_module
from types import ModuleType
from typing import Any


class _NotImported(ModuleType):
    def __getattr__(self, name: str) -> None:
        if name.startswith("__"):
            raise AttributeError(name)


def _import_without_main() -> None:
    if "uvicorn" in sys.modules:
        return
    sys.modules["uvicorn.main"] = _NotImported("uvicorn.main")
    try:
        uvicorn = import_module("uvicorn")
    finally:
        del sys.modules["uvicorn.main"]
    for name in [name for name, value in vars(uvicorn).items() if value is None or isinstance(value, _NotImported)]:
        if not name.startswith("__"):
            delattr(uvicorn, name)

    def from_main(name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(f"module 'uvicorn' has no attribute '{name}'")
        return getattr(import_module("uvicorn.main"), name)

    vars(uvicorn)["__getattr__"] = from_main


_import_without_main()

from uvicorn.config import Config  # noqa: E402
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol  # noqa: E402
from uvicorn.server import Server  # noqa: E402

__all__ = ["Config", "HttpToolsProtocol", "Server"]

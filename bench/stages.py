"""Two sites whose gateways stand in front of a service that answers at once."""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from bench.agents import unhurried
from bench.place import folder
from tests.gateway.stage import Stage


@contextmanager
def started(plane: str, *, is_secure: bool = False, **gateway: Any) -> Iterator[Stage]:
    """All of it ends with the block. `gateway`: more of its settings."""
    with folder() as place, ExitStack() as stack:
        stage = Stage(
            place / "rig", ("site1", "site2"), ("image",), plane=plane, secure=is_secure, gateway=gateway
        )
        unhurried(stage.rig)
        stack.callback(stage.rig.close)
        for site in stage.sites:
            stack.enter_context(_service(stage.own(site)))
        stage.rig.start()
        yield stage


@contextmanager
def _service(port: int) -> Iterator[None]:
    process = subprocess.Popen([sys.executable, "-m", "bench.gateway_service", str(port)])
    try:
        yield
    finally:
        process.kill()
        process.wait()

"""Which data plane a site has: HAProxy or the agent's own proxy; and what an earlier agent has left of it."""

import logging
import os
import re
import signal
import subprocess
import time
from functools import cache
from pathlib import Path

from cheops.config.site import SiteConfig
from cheops.gateway.fast.process import LEAST_VERSION, HaproxyError, program
from cheops.gateway.fast.rendering import PID

FOLDER = "gateway"
_VERSION = re.compile(rb"version (\d+)\.(\d+)")
_END_S = 5.0
_log = logging.getLogger(__name__)


def chosen(config: SiteConfig) -> str | None:
    """Where the HAProxy is that forwards; None where the agent does it. Raises HaproxyError."""
    wanted = config.gateway.data_plane
    if wanted == "builtin" or not any(service.front.listen for service in config.services.values()):
        return None
    found = program()
    version = _version_of(found) if found else None
    if version is not None and version >= LEAST_VERSION:
        return found
    least = ".".join(map(str, LEAST_VERSION))
    if wanted == "haproxy":
        what = f"version {'.'.join(map(str, version))} is too old" if version else "it is not installed"
        raise HaproxyError(
            f"gateway.data_plane in {config.source} is haproxy, but {what}: install HAProxy {least} or "
            "newer, or set it to builtin"
        )
    _log.info("HAProxy %s or newer is not installed: the agent forwards requests itself", least)
    return None


def _asked(argv: list[str]) -> bytes:
    return subprocess.run(argv, capture_output=True, check=False, timeout=10).stdout  # noqa: S603  # nosec B603


@cache
def _version_of(path: str) -> tuple[int, int] | None:
    try:
        said = _asked([path, "-v"])
    except (OSError, subprocess.TimeoutExpired):
        return None
    found = _VERSION.search(said)
    return (int(found[1]), int(found[2])) if found else None


def left_running(config: SiteConfig) -> int | None:
    """The process of the HAProxy that an earlier agent of this site has left, if it still runs."""
    folder = config.data / FOLDER
    try:
        pid = int((folder / PID).read_text().split()[0])
        is_ours = Path(f"/proc/{pid}/cwd").readlink() == folder.resolve()
        return pid if is_ours and "haproxy" in Path(f"/proc/{pid}/comm").read_text() else None
    except (OSError, ValueError, IndexError):
        return None


def end_left(config: SiteConfig) -> None:
    """The agent forwards by itself now: what an earlier one has left must give the addresses back."""
    pid = left_running(config)
    if pid is None:
        return
    _log.warning("an HAProxy that an earlier agent has left (process %s) is ended", pid)
    os.kill(pid, signal.SIGTERM)
    end_s = time.monotonic() + _END_S
    while left_running(config) is not None and time.monotonic() < end_s:
        time.sleep(0.02)

"""The HAProxy process: found, started, adopted from an earlier agent, reloaded without losing a connection, stopped.

Everything it needs is in one folder of the data directory, which is also its working directory, so that socket names
are short. It runs in a session of its own and outlives an agent that is killed; the next agent finds it by its folder.
"""

import asyncio
import contextlib
import logging
import os
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Mapping
from functools import cache
from pathlib import Path

from cheops.config.site import SiteConfig
from cheops.errors import CheopsError
from cheops.gateway.haproxy.configuration import CONFIG, LOG, MASTER, PID
from cheops.gateway.haproxy.runtime import RuntimeSocket, RuntimeSocketError

PLACES = os.pathsep.join(("/usr/sbin", "/usr/local/sbin", "/usr/bin", "/usr/local/bin"))
LEAST_VERSION = (2, 6)
_START_S = 15.0
_ADOPT_S = 5.0
_LOOK_S = 0.02


class HaproxyError(CheopsError):
    """HAProxy does not start, or refuses its configuration."""


def program() -> str | None:
    """The path of HAProxy, if it is installed."""
    return shutil.which("haproxy") or shutil.which("haproxy", path=PLACES)


class Haproxy:
    """One HAProxy. Belongs to one event loop."""

    def __init__(self, folder: Path, path: str) -> None:
        self.folder = folder
        self.runtime = RuntimeSocket(folder)
        self._program = path
        self._child: subprocess.Popen[bytes] | None = None
        self._handle: int | None = None  # of the master process
        self.pid = 0
        self.ended = asyncio.Event()

    # -- files -------------------------------------------------------------------------------------------

    def write(self, files: Mapping[str, bytes]) -> bool:
        """Write these files into the folder; returns whether the configuration has changed."""
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        changed = False
        for name, content in files.items():
            path = self.folder / name
            if path.exists() and path.read_bytes() == content:
                continue
            changed = changed or name == CONFIG
            part = path.with_suffix(".part")
            part.touch(mode=0o600)
            part.write_bytes(content)
            part.replace(path)
        return changed

    async def check(self) -> None:
        """Raises HaproxyError if HAProxy would refuse its configuration."""
        argv = [self._program, "-c", "-q", "-f", CONFIG]
        ended = await asyncio.to_thread(
            subprocess.run, argv, cwd=self.folder, capture_output=True, check=False, timeout=60
        )
        if ended.returncode:
            raise HaproxyError(f"HAProxy refuses its configuration: {_alerts(ended.stderr)}")

    # -- life --------------------------------------------------------------------------------------------

    async def adopt(self) -> bool:
        """Take over the HAProxy of an earlier agent, if it is running and responds."""
        try:
            pid = int((self.folder / PID).read_text().split()[0])
            handle = os.pidfd_open(pid)
        except (OSError, ValueError, IndexError):
            return False
        if not await self._is_ours(pid):
            os.close(handle)
            return False
        self._watch(pid, handle)
        return True

    async def _is_ours(self, pid: int) -> bool:
        """Whether this is the HAProxy of this folder and responds, which takes a while during a reload."""
        end_s = asyncio.get_running_loop().time() + _ADOPT_S
        while True:
            try:
                is_here = Path(f"/proc/{pid}/cwd").readlink() == self.folder.resolve()
                if not is_here or "haproxy" not in Path(f"/proc/{pid}/comm").read_text():
                    return False
                if await self._has_worker():
                    return True
            except OSError:
                return False
            if asyncio.get_running_loop().time() > end_s:
                return False
            await asyncio.sleep(_LOOK_S)

    async def start(self) -> None:
        """Start it, and wait until it takes connections. Raises HaproxyError."""
        self._kill_left()
        # -W: a master, which keeps the sockets, and a worker; a reload replaces only the worker.
        argv = [self._program, "-W", "-S", f"unix@{MASTER},mode,600,level,admin", "-p", PID, "-f", CONFIG]
        with (self.folder / LOG).open("wb") as log:
            self._child = subprocess.Popen(  # noqa: S603  # nosec B603
                argv,
                cwd=self.folder,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        self._watch(self._child.pid, os.pidfd_open(self._child.pid))
        end_s = asyncio.get_running_loop().time() + _START_S
        while not await self._has_worker():
            if self.ended.is_set() or asyncio.get_running_loop().time() > end_s:
                raise HaproxyError(f"HAProxy did not start: {_alerts((self.folder / LOG).read_bytes())}")
            await asyncio.sleep(_LOOK_S)

    async def reload(self) -> None:
        """Load the new configuration: a new worker takes new connections, the old one ends with its own. Raises
        HaproxyError, and then nothing has changed."""
        await self.check()
        before = {one.pid for one in await self.runtime.workers() if not one.is_old}
        self.signal(signal.SIGUSR2)
        end_s = asyncio.get_running_loop().time() + _START_S
        while True:
            if self.ended.is_set() or asyncio.get_running_loop().time() > end_s:
                raise HaproxyError(f"HAProxy was not reloaded: {_alerts((self.folder / LOG).read_bytes())}")
            await asyncio.sleep(_LOOK_S)
            try:
                now = {one.pid for one in await self.runtime.workers() if not one.is_old}
            except RuntimeSocketError:
                continue  # the master is re-executing itself
            if now and not now & before:
                return

    async def stop(self, grace_s: float) -> None:
        """Accept no more connections, and give requests in progress some time to end."""
        self.signal(signal.SIGUSR1)
        end_s = asyncio.get_running_loop().time() + grace_s
        while not self.ended.is_set() and asyncio.get_running_loop().time() < end_s:
            await asyncio.sleep(_LOOK_S)
            with contextlib.suppress(RuntimeSocketError):
                if not await self.runtime.open_requests():
                    break
        if not self.ended.is_set():
            self.signal(signal.SIGTERM)
            try:
                await asyncio.wait_for(self.ended.wait(), 2.0)
            except TimeoutError:
                self.signal(signal.SIGKILL)
        (self.folder / PID).unlink(missing_ok=True)

    def signal(self, number: int) -> None:
        if self._handle is not None and not self.ended.is_set():
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._handle, number)

    def let_go(self) -> None:
        """Stop watching it; it keeps running."""
        if self._handle is not None:
            asyncio.get_running_loop().remove_reader(self._handle)
            os.close(self._handle)
            self._handle = None

    def _watch(self, pid: int, handle: int) -> None:
        self.pid, self._handle = pid, handle
        self.ended = asyncio.Event()
        asyncio.get_running_loop().add_reader(handle, self._ended)

    def _ended(self) -> None:
        self.let_go()
        if self._child is not None:
            self._child.poll()
        self.ended.set()

    def _kill_left(self) -> None:
        """Kill workers whose master was killed: they hold the addresses, and take no more commands."""
        here = self.folder.resolve()
        for entry in Path("/proc").iterdir():
            if not entry.name.isdigit():
                continue
            try:
                if (entry / "cwd").readlink() == here and "haproxy" in (entry / "comm").read_text():
                    os.kill(int(entry.name), signal.SIGKILL)
            except OSError:
                continue

    async def _has_worker(self) -> bool:
        try:
            return any(not one.is_old for one in await self.runtime.workers())
        except RuntimeSocketError:
            return False


def _alerts(output: bytes) -> str:
    lines = output.decode("utf-8", "replace").splitlines()
    alerts = [line.partition(" : ")[2] for line in lines if line.startswith("[ALERT]")]
    return "; ".join(alerts[-5:]) or "it reported nothing"


FOLDER = "gateway"
_VERSION = re.compile(rb"version (\d+)\.(\d+)")
_END_S = 5.0
_log = logging.getLogger(__name__)


def choose_program(config: SiteConfig) -> str | None:
    """The path of the HAProxy to use; None if the agent forwards itself. Raises HaproxyError."""
    wanted = config.gateway.data_plane
    if wanted == "builtin" or not any(service.listener.listen for service in config.services.values()):
        return None
    path = program()
    version = _version_of(path) if path else None
    if version is not None and version >= LEAST_VERSION:
        return path
    least = ".".join(map(str, LEAST_VERSION))
    if wanted == "haproxy":
        what = f"version {'.'.join(map(str, version))} is too old" if version else "it is not installed"
        raise HaproxyError(
            f"gateway.data_plane in {config.source} is haproxy, but {what}: install HAProxy {least} or "
            "newer, or set it to builtin"
        )
    _log.info("HAProxy %s or newer is not installed: the agent forwards requests itself", least)
    return None


def _output_of(argv: list[str]) -> bytes:
    return subprocess.run(argv, capture_output=True, check=False, timeout=10).stdout  # noqa: S603  # nosec B603


@cache
def _version_of(path: str) -> tuple[int, int] | None:
    try:
        output = _output_of([path, "-v"])
    except (OSError, subprocess.TimeoutExpired):
        return None
    version = _VERSION.search(output)
    return (int(version[1]), int(version[2])) if version else None


def leftover_pid(config: SiteConfig) -> int | None:
    """The process of the HAProxy that an earlier agent of this site has left, if it still runs."""
    folder = config.data / FOLDER
    try:
        pid = int((folder / PID).read_text().split()[0])
        is_ours = Path(f"/proc/{pid}/cwd").readlink() == folder.resolve()
        return pid if is_ours and "haproxy" in Path(f"/proc/{pid}/comm").read_text() else None
    except (OSError, ValueError, IndexError):
        return None


def stop_leftover(config: SiteConfig) -> None:
    """Stop the HAProxy of an earlier agent: this agent forwards itself, and needs the addresses."""
    pid = leftover_pid(config)
    if pid is None:
        return
    _log.warning("stopping the HAProxy of an earlier agent (process %s)", pid)
    os.kill(pid, signal.SIGTERM)
    end_s = time.monotonic() + _END_S
    while leftover_pid(config) is not None and time.monotonic() < end_s:
        time.sleep(0.02)

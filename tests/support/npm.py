"""Packages from npm that tests run: the pinned versions, installed once into pytest's cache."""

import fcntl
import hashlib
import shutil
import subprocess
from pathlib import Path

import pytest


def installed(config: pytest.Config, source: Path, name: str) -> Path:
    """The node_modules of the folder `source`, which holds package.json and its lock; skips without npm."""
    if not (shutil.which("node") and shutil.which("npm")):
        pytest.skip("needs node and npm (Debian: apt-get install nodejs npm)")
    lock = (source / "package-lock.json").read_bytes()
    place = config.cache.mkdir(f"{name}-{hashlib.sha256(lock).hexdigest()[:12]}")
    with (place / "lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)  # the tests run in several processes
        if not (place / "complete").exists():
            _install(source, place, name)
    return place / "node_modules"


def _install(source: Path, place: Path, name: str) -> None:
    for file in ("package.json", "package-lock.json"):
        shutil.copy(source / file, place)
    command = ["npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund"]
    result = subprocess.run(command, cwd=place, capture_output=True, text=True, check=False, timeout=100)
    if result.returncode:
        reason = (result.stderr.strip().splitlines() or ["npm printed no reason"])[-1]
        pytest.skip(f"needs {name}, which npm could not install: {reason}")
    (place / "complete").touch()

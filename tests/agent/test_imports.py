"""What an ordinary agent does not import. It runs for months, and each of these takes memory all that time."""

import subprocess
import sys

import pytest

_AGENT = """
import sys
from cheops.cli.agent_process import serve
import cheops.cli.main, cheops.agent, cheops.backends.command.backend, cheops.backends.http.backend
from cheops.plugins import scope_functions
from cheops.scope import parse
scope_functions()
parse("{image: site1 & site2}")
print(*sys.modules, sep="\\n")
"""


@pytest.fixture(scope="module")
def imported() -> set[str]:
    return set(
        subprocess.run([sys.executable, "-c", _AGENT], capture_output=True, text=True, check=True).stdout.split()
    )


@pytest.mark.parametrize(
    "name",
    [
        "aiohttp",  # no request by HTTP, no web hook
        "click",  # uvicorn's command line
        "cryptography",  # no security
        "importlib.metadata",  # no plugin
        "lark",  # no scope with functions
        "multiprocessing",
        "pydantic",
        "rich",
        "smtplib",  # no mail
        "typer",
        "uvicorn.main",
        "cheops.client",
        "cheops.demo",
        "cheops.sim",
    ],
)
def test_an_ordinary_agent_does_without(imported: set[str], name: str) -> None:
    assert name not in imported


def test_uvicorn_has_its_command_line_for_those_who_ask() -> None:
    code = "import cheops.api.uvicorn_server, uvicorn, sys; print(uvicorn.run.__module__, uvicorn.Config.__module__)"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout.split() == ["uvicorn.main", "uvicorn.config"]

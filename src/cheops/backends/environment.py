"""What a command sees of the agent's environment, and where its program is found by that.

Commands are started by another process (see command.py); what is said here of programs is for those who want
to know beforehand, and follows the same rules: the PATH of the type before the agent's, and relative paths
start at the directory in which the type's commands start.
"""

import os
from pathlib import Path

from cheops.config.command_settings import CommandSettings

_INHERITED = ("PATH", "HOME", "LANG", "TZ")
_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


def environment(settings: CommandSettings) -> dict[str, str]:
    """The variables of the commands of a type."""
    inherited = {name: os.environ[name] for name in _INHERITED if name in os.environ}
    if settings.user is not None:
        inherited.pop("HOME", None)  # the keeper knows that user's
    return {"PATH": _PATH} | inherited | dict(settings.env)


def where_is(program: str, settings: CommandSettings) -> Path | None:
    """The file that a command of the type would run under this name; None if there is none."""
    start = settings.cwd or Path("/")
    folders = [""] if "/" in program else filter(None, environment(settings)["PATH"].split(":"))
    candidates = (start / folder / program for folder in folders)
    return next((path for path in candidates if path.is_file() and os.access(path, os.X_OK)), None)

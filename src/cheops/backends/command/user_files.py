"""Files of operations for commands that run as another user than the agent.

Nobody but the agent's user can read the store of files. So such a command gets a copy of its own, in a directory that
only its user can enter, and that is deleted when the command has ended.
"""

import os
import pwd
import shutil
import tempfile
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from cheops.config.types import TypeConfig
from cheops.errors import CheopsError
from cheops.store.files import make_private
from cheops.store.room import DiskRoom

FOLDER = "for-commands"
# Others may pass through to the directory that is theirs, and see nothing on the way.
PASSABLE = 0o711


def has_other_users(types: Collection[TypeConfig]) -> bool:
    return any(_account(type_.command.user) is not None for type_ in types)


class UserFiles:
    """Belongs to one agent. Methods block while they copy."""

    def __init__(self, data: Path, kept_bytes: int) -> None:
        self._folder = data / FOLDER
        self._room = DiskRoom(data, kept_bytes)

    def clear(self) -> None:
        """Delete what commands left that a crash interrupted."""
        shutil.rmtree(self._folder, ignore_errors=True)

    @contextmanager
    def lent_to(self, user: str | None, files: Mapping[str, Path]) -> Iterator[Mapping[str, Path]]:
        """The files under paths that this user can read."""
        account = _account(user)
        if account is None or not files:
            yield files
            return
        try:
            make_private(self._folder, PASSABLE)
            with tempfile.TemporaryDirectory(dir=self._folder) as own:
                self._room.check(sum(path.stat().st_size for path in files.values()))
                copies = {
                    name: _copy(path, Path(own) / str(n), account) for n, (name, path) in enumerate(files.items())
                }
                os.chown(own, account.pw_uid, account.pw_gid)
                yield copies
        except OSError as error:
            raise CheopsError(f"the files cannot be copied for the user '{user}': {error.strerror}") from error


def _copy(path: Path, to: Path, account: pwd.struct_passwd) -> Path:
    shutil.copyfile(path, to)
    to.chmod(0o400)
    os.chown(to, account.pw_uid, account.pw_gid)
    return to


def _account(user: str | None) -> pwd.struct_passwd | None:
    """The account that needs copies. Without the rights of root the command does not start anyway, and says why."""
    if user is None or os.geteuid() != 0:
        return None
    try:
        account = pwd.getpwnam(user)
    except KeyError:
        return None
    return account if account.pw_uid != 0 else None

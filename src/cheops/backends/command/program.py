"""Starts one program: with posix_spawn, which is fast because it copies nothing, or with fork.

Only another user or resource limits need the fork: posix_spawn supports neither. Either way the command leads its own
session, reads from /dev/null, writes both streams into one pipe, has the default handling of all signals and no other
file open. An error before the program runs is a NotStartedError: then nothing has happened.
"""

import errno
import os
import pwd
import resource
import signal
import stat
import sys

from cheops.backends.command.typing_names import NamedTuple, NoReturn
from cheops.backends.command.wire import Order

# The spawner and its workers ignore these, so that only the end of the agent ends them. Ignored signals stay ignored
# in a program that is executed, so they are reset there, with the two that Python itself ignores.
IGNORED = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)
_RESET = (*IGNORED, signal.SIGPIPE, signal.SIGXFSZ)
_STDOUT, _STDERR = 1, 2
_LIMITS = (resource.RLIMIT_CPU, resource.RLIMIT_AS, resource.RLIMIT_NOFILE, resource.RLIMIT_NPROC)


class NotStartedError(Exception):
    """The program was not started; the text says why."""


class _User(NamedTuple):
    uid: int
    gid: int
    groups: list[int]
    home: bytes


def start(order: Order, output: int) -> int:
    """The process id of the started command, whose output goes to the pipe `output`."""
    if order.user or any(limit is not None for limit in order.limits):
        return _fork(order, output)
    _enter(order.cwd)
    try:
        return _spawn(order, output)
    finally:
        os.chdir("/")  # a worker must not keep a directory in use, or it could not be unmounted


def _spawn(order: Order, output: int) -> int:
    environment = _environment(order)
    program = _find(order.argv[0], environment)
    to_pipe: list[tuple[object, ...]] = [(os.POSIX_SPAWN_DUP2, output, _STDOUT)]
    if order.with_errors:
        to_pipe.append((os.POSIX_SPAWN_DUP2, output, _STDERR))
    else:
        to_pipe.append((os.POSIX_SPAWN_OPEN, _STDERR, os.devnull, os.O_WRONLY, 0))
    try:
        return os.posix_spawn(
            program,
            order.argv,
            environment,
            file_actions=to_pipe,
            setsid=True,
            setsigmask=(),
            setsigdef=_RESET,
        )
    except OSError as error:
        raise NotStartedError(_why(program, error)) from None


# -- with a fork -----------------------------------------------------------------------------------------


def _fork(order: Order, output: int) -> int:
    user = _look_up(order.user) if order.user else None
    error_reader, error_writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        _become(order, user, output, error_writer)
    os.close(error_writer)
    try:
        if text := os.read(error_reader, 65536):  # empty if exec succeeded: the pipe is close-on-exec
            os.waitpid(pid, 0)
            raise NotStartedError(text.decode(errors="replace"))
    finally:
        os.close(error_reader)
    return pid


def _become(order: Order, user: _User | None, output: int, error_writer: int) -> NoReturn:
    """In the forked child: execute the command, or report through the pipe why not."""
    try:
        os.setsid()
        os.dup2(output, _STDOUT)
        os.dup2(output if order.with_errors else os.open(os.devnull, os.O_WRONLY), _STDERR)
        environment = _environment(order, user)
        if user:
            _switch_to(user, order.user)
        _enter(order.cwd)
        program = _find(order.argv[0], environment)
        for number in _RESET:
            signal.signal(number, signal.SIG_DFL)
        _limit(order)  # last: the preparation itself must not run into the limits
        _exec(program, order, environment)
    except NotStartedError as error:
        os.write(error_writer, str(error).encode(errors="replace"))
    except (OSError, ValueError, MemoryError) as error:
        os.write(error_writer, f"it could not be prepared: {error!r}".encode(errors="replace"))
    finally:
        os._exit(127)


def _exec(program: bytes, order: Order, environment: dict[bytes, bytes]) -> NoReturn:
    try:
        os.execve(program, order.argv, environment)  # noqa: S606 - no shell is the point  # nosec B606
    except OSError as error:
        raise NotStartedError(_why(program, error)) from None


def _look_up(name: bytes) -> _User:
    text = name.decode(errors="surrogateescape")
    try:
        entry = pwd.getpwnam(text)
    except KeyError:
        raise NotStartedError(f"there is no user '{text}' on this machine") from None
    groups = os.getgrouplist(text, entry.pw_gid)
    return _User(entry.pw_uid, entry.pw_gid, groups, os.fsencode(entry.pw_dir))


def _switch_to(user: _User, name: bytes) -> None:
    if user.uid == os.geteuid():
        return
    try:
        # In this order: without root's rights, groups can no longer be changed.
        os.setgroups(user.groups)
        os.setgid(user.gid)
        os.setuid(user.uid)
    except PermissionError:
        text = name.decode(errors="replace")
        raise NotStartedError(f"to run as user '{text}' the agent must run as root") from None


def _limit(order: Order) -> None:
    for kind, limit in zip(_LIMITS, order.limits, strict=True):
        if limit is not None:
            _, most = resource.getrlimit(kind)
            soft = limit if most == resource.RLIM_INFINITY else min(limit, most)
            # At the soft limit the command gets SIGXCPU, a second later it is killed.
            hard = soft + 1 if kind == resource.RLIMIT_CPU and soft == limit != most else soft
            resource.setrlimit(kind, (soft, hard))


# -- with or without a fork ------------------------------------------------------------------------------


def _environment(order: Order, user: _User | None = None) -> dict[bytes, bytes]:
    variables: dict[bytes, bytes] = {}
    for entry in order.environment:
        name, _, value = entry.partition(b"=")
        variables[name] = value
    if user:
        variables.setdefault(b"HOME", user.home)
    return variables


def _enter(directory: bytes) -> None:
    try:
        os.chdir(directory)
    except OSError as error:
        raise NotStartedError(f"working directory {_shown(directory)}: {_reason(error)}") from None


def _find(name: bytes, environment: dict[bytes, bytes]) -> bytes:
    """The path of the program, by the PATH of the command, not the agent's."""
    if b"/" in name:
        return name
    path = environment.get(b"PATH", b"")
    denied = b""
    for directory in filter(None, path.split(b":")):
        candidate = directory + b"/" + name
        if _is_file(candidate):
            if os.access(candidate, os.X_OK):
                return candidate
            denied = denied or candidate
    if denied:
        raise NotStartedError(f"{_shown(denied)}: permission denied (is it executable?)")
    raise NotStartedError(f"{_shown(name)}: no such program in PATH ({_shown(path)})")


def _is_file(path: bytes) -> bool:
    try:
        return stat.S_ISREG(os.stat(path).st_mode)  # noqa: PTH116 - bytes, and without the weight of pathlib
    except OSError:
        return False


def _why(program: bytes, error: OSError) -> str:
    hint = ""
    if error.errno == errno.ENOENT and _is_file(program):
        hint = " (the interpreter that its first line names)"
    elif error.errno == errno.EACCES:
        hint = " (is it a file, and executable?)"
    elif error.errno == errno.ENOEXEC:
        hint = " (a script begins with a line such as #!/bin/sh)"
    return f"{_shown(program)}: {_reason(error)}{hint}"


def _reason(error: OSError) -> str:
    return (error.strerror or str(error)).lower()


def _shown(raw: bytes) -> str:
    return raw.decode(sys.getfilesystemencoding(), "replace")

"""The spawner: the parent of all keepers, one per agent, itself nearly nothing.

It forks keepers when asked (a fork of something so small is cheap, however large the agent has grown) and
hands each the socket that came along. It inherits what a keeper leaves if that one is killed, and kills
it. It does not run commands and does not stand between agent and keepers. When the agent is gone, which
the end of the control socket says even after SIGKILL, it stays until the last keeper has cleaned up.

Runs with `python -I -S`: nothing but the standard library, and little of that. Linux 5.3 or newer
(pidfd).
"""

import os
import select
import signal
import socket
import sys
from typing import NoReturn

from cheops.backends.command import descendants, program, worker
from cheops.backends.command.wire import frame

NEW_WORKER = b"n"
NEW_UNPRIVILEGED_WORKER = b"u"
KILL_WORKER = b"k"  # and its process id
_STRAYS_MS = 10


def main() -> None:
    for number in program.IGNORED:
        signal.signal(number, signal.SIG_IGN)
    os.chdir("/")
    descendants.inherit_orphans()
    _Spawner(socket.socket(fileno=int(sys.argv[2]))).serve()


class _Spawner:
    def __init__(self, control: socket.socket) -> None:
        control.set_inheritable(False)
        self._control = control
        self._workers: dict[int, int] = {}  # pidfd → process id
        self._poller = select.poll()
        self._poller.register(control, select.POLLIN)
        self._is_wanted = True

    def serve(self) -> None:
        strays = False
        while self._is_wanted or self._workers or strays:
            for file, _ in self._poller.poll(_STRAYS_MS if strays else None):
                if file in self._workers:
                    self._reap(file)
                else:
                    self._handle_message()
            strays = descendants.kill_children(spared=frozenset(self._workers.values()))

    def _handle_message(self) -> None:
        message, files, _, _ = socket.recv_fds(self._control, 64, 1)
        word, rest = message[:1], message[1:]
        if word == KILL_WORKER and int(rest) in self._workers.values():
            descendants.kill(int(rest))
        elif files:
            self._fork(socket.socket(fileno=files[0]), word == NEW_UNPRIVILEGED_WORKER)
        elif not message:
            self._poller.unregister(self._control)
            self._is_wanted = False

    def _fork(self, agent: socket.socket, without_new_privileges: bool) -> None:
        agent.set_inheritable(False)
        try:
            pid = os.fork()
        except OSError:  # no more processes: say so by an empty greeting
            agent.sendall(frame(b""))
            agent.close()
            return
        if pid == 0:
            self._become_worker(agent, without_new_privileges)
        agent.close()
        pidfd = os.pidfd_open(pid)
        self._workers[pidfd] = pid
        self._poller.register(pidfd, select.POLLIN)

    def _become_worker(self, agent: socket.socket, without_new_privileges: bool) -> NoReturn:
        try:
            self._control.close()
            for pidfd in self._workers:
                os.close(pidfd)
            if without_new_privileges:
                descendants.renounce_privileges()
            worker.serve_orders(agent)
        except ConnectionError:  # the agent went away in mid-sentence
            pass
        except BaseException:  # a forked child must not go on as its parent
            sys.excepthook(*sys.exc_info())
        finally:
            os._exit(0)

    def _reap(self, pidfd: int) -> None:
        self._poller.unregister(pidfd)
        os.waitpid(self._workers.pop(pidfd), 0)
        os.close(pidfd)

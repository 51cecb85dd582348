"""`cheops` as a program that lets the fork server run it: `python -I -S forked_command.py SOCKET ARGUMENTS`.

It starts in a twentieth of the time, because it imports next to nothing. The command gets its files, directory,
environment and network namespace, and ends with it.
"""

import json
import os
import socket
import sys


def main() -> int:
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as server:
        server.connect(sys.argv[1])
        request = {
            "argv": sys.argv[2:],
            "namespace": f"/proc/{os.getpid()}/ns/net",
            "cwd": os.getcwd(),  # noqa: PTH109 - without the weight of pathlib
            "environment": dict(os.environ),
        }
        socket.send_fds(server, [json.dumps(request).encode()], [0, 1, 2])
        code = int(server.recv(16) or b"70")
    return code if code >= 0 else 128 - code


if __name__ == "__main__":
    sys.exit(main())

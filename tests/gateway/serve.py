"""`python -m tests.gateway.serve NAME PORT`: a service as a process of its own, for hosts of the test bed."""

import sys
import threading

from tests.gateway.service import Service

if __name__ == "__main__":
    Service(sys.argv[1], int(sys.argv[2]))
    threading.Event().wait()

"""Demo mode, in the configuration file: the sites stand on wires that can be cut, and this agent may have
them cut. Off unless a file says where whoever holds the wires can be asked; `cheops demo` does.
"""

from pathlib import Path

from cheops.config.keys import DEMO
from cheops.config.paths import path_at
from cheops.documents import Value


def wires_at(value: Value, folder: Path) -> Path:
    """The Unix socket of whoever holds the wires."""
    return path_at(DEMO.read(value)["wires"], folder)

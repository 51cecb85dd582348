"""What is to be passed on, a bounded piece at a time: each item a few times, the longest waiting first.

A dict keeps the order of waiting, so that taking n items costs n, however many wait. What does not fit is
dropped from the front: it is the oldest, and its successor or anti-entropy makes up for it.
"""

from collections.abc import Hashable
from itertools import islice
from typing import Generic, TypeVar

Key = TypeVar("Key", bound=Hashable)


class News(Generic[Key]):
    """Keys, each with the number of times it is still to be told."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._waiting: dict[Key, int] = {}

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, key: Key, times: int) -> None:
        """Something is news (again): it keeps its place in the queue, if it has one."""
        if key not in self._waiting and len(self._waiting) >= self._most:
            del self._waiting[next(iter(self._waiting))]
        self._waiting[key] = times

    def take(self, most: int) -> list[Key]:
        """The next keys to tell; each goes to the end of the queue until it has been told often enough."""
        taken = list(islice(self._waiting, most))
        for key in taken:
            left = self._waiting.pop(key) - 1
            if left > 0:
                self._waiting[key] = left
        return taken

    def drop(self, key: Key) -> None:
        self._waiting.pop(key, None)

"""Running targets: which inputs, how long one may take, and what is said of one that goes wrong.

Input number n of a target comes from the seed, the target's name and n alone, so a finding can be repeated
without what went before it. A worker is a process of its own with a limit on its memory.
"""

import faulthandler
import random
import resource
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType

from tests.security.fuzz.targets import Target

LONGEST_S = 5.0  # for one input of at most mutator.MAX_BYTES
MOST_MEMORY_BYTES = 1536 * 1024 * 1024  # of a worker's whole address space


class TooSlowError(BaseException):
    """An input took too long. Not an Exception: nothing under test may catch it."""


@dataclass(frozen=True)
class Finding:
    target: str
    seed: int
    number: int
    data: bytes
    error: BaseException

    def __str__(self) -> str:
        return (
            f"{self.target}: input {self.number} of seed {self.seed} ended with "
            f"{type(self.error).__name__}: {str(self.error)[:500]}\n"
            f"  the input: {self.data[:2000]!r}{'…' if len(self.data) > 2000 else ''}\n"
            f"  again: python -m tests.security.fuzz --target {self.target} --seed {self.seed} --only {self.number}"
        )


def made_input(target: Target, name: str, seed: int, number: int) -> bytes:
    """The first ones are the samples as they are: those must be fine."""
    if number < len(target.seeds):
        return target.seeds[number]
    draw = random.Random(f"{seed}/{name}/{number}")  # noqa: S311 - the same each time
    return target.make(target.seeds, target.tokens, draw, target.most_bytes)


def tried(target: Target, data: bytes) -> BaseException | None:
    """What came out that may not, if anything."""
    try:
        with _bounded(LONGEST_S):
            target.run(data)
    except target.allowed:
        return None
    except (Exception, TooSlowError) as error:
        return error
    return None


def campaign(name: str, target: Target, seed: int, numbers: range, most: int = 3) -> list[Finding]:
    """All of these inputs, or those up to a few findings."""
    findings: list[Finding] = []
    for number in numbers:
        data = made_input(target, name, seed, number)
        error = tried(target, data)
        if error is not None:
            findings.append(Finding(name, seed, number, data, error))
            if len(findings) >= most:
                break
    return findings


@contextmanager
def _bounded(longest_s: float) -> Iterator[None]:
    """By the processor's time, so that a busy machine is no finding."""
    before = signal.signal(signal.SIGPROF, _too_slow)
    signal.setitimer(signal.ITIMER_PROF, longest_s)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)


def _too_slow(_number: int, _frame: FrameType | None) -> None:
    raise TooSlowError(f"more than {LONGEST_S:g} s of processor time for one input")


def limit_memory() -> None:
    """Of this whole process; what goes beyond it is a MemoryError, and a finding."""
    faulthandler.enable()
    resource.setrlimit(resource.RLIMIT_AS, (MOST_MEMORY_BYTES, MOST_MEMORY_BYTES))


def shares(targets: dict[str, Target], total: int) -> dict[str, int]:
    """How many inputs each target gets."""
    whole = sum(target.share for target in targets.values())
    return {name: max(len(target.seeds), -(-total * target.share // whole)) for name, target in targets.items()}

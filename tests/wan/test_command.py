"""The bed by hand, and what happens to beds whose owner is killed."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator

import pytest

from tests.support.command import ROOT
from tests.wan.__main__ import chosen, main
from tests.wan.datagrams import reachable, until_none
from tests.wan.fixtures import MakeWan, requires_wan
from tests.wan.record import Record, WanError, read_record, remove, started

OWNER = """
import time
from tests.wan import Wan
with Wan(2) as wan:
    inside = wan.hosts["site1"].popen(["sleep", "1000"])
    print(wan.bed, inside.pid, wan._switch.pid, flush=True)
    time.sleep(1000)
"""


class Owner:
    """A process with a bed, something running in it, and nobody to clean up when it is killed."""

    def __init__(self) -> None:
        self.process = subprocess.Popen([sys.executable, "-c", OWNER], cwd=ROOT, stdout=subprocess.PIPE, text=True)
        assert self.process.stdout
        bed, inside, switch = self.process.stdout.readline().split()
        self.record = read_record(bed)
        self.inside, self.switch = int(inside), int(switch)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()
        if self.process.stdout:
            self.process.stdout.close()  # not read to its end: what runs in the bed has it too

    def left(self) -> list[str]:
        """What is still there of the bed."""
        files = [*self.record.namespaces, self.record.path, self.record.control_path]
        running = [pid for pid in (self.inside, self.switch) if started(pid) is not None]
        return [str(path) for path in files if path.exists()] + [f"process {pid}" for pid in running]


@pytest.fixture
def owner() -> Iterator[Owner]:
    made = Owner()
    yield made
    made.kill()
    remove(made.record)


@requires_wan
def test_an_owner_killed_leaves_nothing(owner: Owner) -> None:
    assert all(path.exists() for path in owner.record.namespaces)
    assert started(owner.inside)
    owner.process.kill()
    until_none(owner.left)


@requires_wan
def test_down_clears_away_dead_beds_and_leaves_living_ones(
    owner: Owner, make_wan: MakeWan, capsys: pytest.CaptureFixture[str]
) -> None:
    living = make_wan("a", "b")
    os.kill(owner.switch, signal.SIGKILL)
    owner.kill()
    assert main(["down"]) == 0
    assert living.bed not in capsys.readouterr().out
    until_none(owner.left)
    assert reachable(living) == {"ab", "ba"}


@pytest.fixture
def by_hand() -> Iterator[tuple[subprocess.Popen[str], str]]:
    argv = [sys.executable, "-m", "tests.wan", "up", "--names", "a,b", "--delay", "2"]
    with subprocess.Popen(argv, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout
        try:
            yield process, process.stdout.readline().split()[1].rstrip(",")
        finally:
            process.kill()


@requires_wan
def test_a_bed_by_hand(by_hand: tuple[subprocess.Popen[str], str], capfd: pytest.CaptureFixture[str]) -> None:
    process, bed = by_hand

    def told(*argv: str) -> str:
        assert main([argv[0], "--bed", bed, *argv[1:]]) == 0, capfd.readouterr().err
        return capfd.readouterr().out

    assert "a → b: 2 ms, loses 0%; 0 packets passed" in told("list")
    told("cut", "a", "b", "--one-way")
    told("delay", "b", "a", "7.5", "--one-way")
    listed = told("list")
    assert "a → b: cut" in listed
    assert "b → a: 7.5 ms" in listed
    told("heal")
    told("delay", "9")
    told("loss", "a", "b", "0.25", "--seed", "3")
    assert "b → a: 9 ms, loses 25%" in told("list")
    told("partition", "a", "b")
    assert "b → a: cut" in told("list")
    told("restore")
    told("isolate", "a")
    assert "a → b: cut" in told("list")
    assert main(["cut", "--bed", bed, "a", "x"]) == 1
    assert "no host 'x'" in capfd.readouterr().err
    assert "goes down" in told("down")
    assert "The bed is down." in process.communicate()[0]
    assert process.returncode == 0


@requires_wan
def test_commands_in_a_bed_by_hand_and_its_end(by_hand: tuple[subprocess.Popen[str], str]) -> None:
    process, bed = by_hand
    record = read_record(bed)
    argv = [sys.executable, "-m", "tests.wan", "exec", "--bed", bed, "b", "--", "ip", "-4", "address"]
    done = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, check=True)
    assert "inet 10.77.0.2/24" in done.stdout
    process.send_signal(signal.SIGINT)
    out, _ = process.communicate()
    assert "The bed is down." in out
    assert not any(path.exists() for path in [*record.namespaces, record.path])


def record_of(bed: str, *, by_hand: bool = True, alive: bool = True) -> Record:
    return Record(bed, os.getpid(), (started(os.getpid()) or 0) + (not alive), by_hand, 0.0, {"a": "10.77.0.1"})


def test_the_bed_that_is_meant() -> None:
    mine, dead, of_a_test = record_of("1"), record_of("2", alive=False), record_of("3", by_hand=False)
    assert chosen([dead, mine, of_a_test], None) == mine
    assert chosen([dead, mine, of_a_test], "3") == of_a_test
    with pytest.raises(WanError, match="no bed is up"):
        chosen([dead, of_a_test], None)
    with pytest.raises(WanError, match="several beds: 1, 4; name one"):
        chosen([mine, record_of("4")], None)
    with pytest.raises(WanError, match="no bed '9'"):
        chosen([mine], "9")

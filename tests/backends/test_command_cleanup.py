"""Nothing of a command is left behind, however it, the agent or a helper ends."""

import asyncio
import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path

import pytest

from cheops.backends.command.runner import CommandRunner, Completed
from cheops.backends.command.wire import CommandStatus
from tests.backends.processes import (
    ANYTHING,
    IN_SHELL,
    descendants,
    eventually,
    is_dead,
    run,
    soon,
    unique,
    with_mark,
)
from tests.support.command import ROOT

# Ways to get away: in the background, into a session of its own, by a double fork, without environment.
ESCAPES = {
    "background": "sleep {mark} & ",
    "session": "setsid sleep {mark} & ",
    "double fork": "setsid sh -c 'setsid sleep {mark} & exit' ; ",
    "no environment": "setsid env -i /bin/sleep {mark} >/dev/null 2>&1 & ",
    "deaf": "setsid sh -c \"trap '' TERM HUP INT; sleep {mark}; sleep {mark}\" & ",
}


def running(line: str, mark: str, then: Callable[[CommandRunner], Awaitable[None]]) -> Completed:
    """Start a command, do something when its marked process is there, and see how it ends."""

    async def main() -> Completed:
        async with CommandRunner() as runner:
            task = asyncio.ensure_future(runner.run(line, IN_SHELL, resource="x"))
            await soon(lambda: with_mark(f"sleep\0{mark}"), "the command runs")
            await then(runner)
            return await task

    return asyncio.run(main())


@pytest.mark.parametrize("escape", ESCAPES)
def test_gone_when_the_command_has_ended(escape: str) -> None:
    mark = unique()
    hidden = mark.replace("8", "[8]", 1)  # or the shell would find its own command line
    script = ESCAPES[escape].format(mark=mark) + f"until pgrep -f 'sleep {hidden}' >/dev/null; do :; done; echo done"
    done = run(script, IN_SHELL)
    assert (done.exit_code, done.output) == (0, "done\n")
    assert done.left_behind > 0
    assert not with_mark(mark)


@pytest.mark.parametrize("escape", ESCAPES)
def test_gone_when_the_time_is_over(escape: str) -> None:
    mark = unique()
    done = run(f"{ESCAPES[escape].format(mark=mark)}echo begun; sleep {mark}", replace(IN_SHELL, timeout_s=0.3))
    assert (done.status, done.exit_code, done.output) == (CommandStatus.TIMED_OUT, None, "begun\n")
    assert not with_mark(mark)


def test_the_time_is_over_also_for_one_that_ignores_it() -> None:
    mark = unique()
    line = f"trap 'echo asked' TERM; while :; do sleep {mark}; done"
    done = run(line, replace(IN_SHELL, timeout_s=0.3))
    assert done.status is CommandStatus.TIMED_OUT
    assert done.output.splitlines()[-1] == "asked"
    assert not with_mark(mark)


@pytest.mark.parametrize("escape", ESCAPES)
def test_gone_when_the_agent_is_killed(escape: str) -> None:
    mark = unique()
    program = f"""
        import asyncio
        from cheops.backends.command.runner import CommandRunner
        from tests.backends.processes import IN_SHELL
        from tests.backends.test_command_cleanup import ESCAPES
        async def main():
            async with CommandRunner() as runner:
                print(runner._spawner.pid, flush=True)
                escape = ESCAPES[{escape!r}].format(mark={mark!r})
                await asyncio.gather(*(runner.run(escape + "sleep {mark}", IN_SHELL, resource="x") for _ in range(3)))
        asyncio.run(main())
    """
    with subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(program)], cwd=ROOT, stdout=subprocess.PIPE, text=True
    ) as agent:
        assert agent.stdout is not None
        spawner = int(agent.stdout.readline())
        eventually(lambda: len(with_mark(f"sleep\0{mark}")) == 6, "all run")
        agent.kill()
    eventually(lambda: not with_mark(mark), "all commands are gone")
    eventually(lambda: is_dead(spawner), "the spawner is gone")


def test_a_killed_keeper_is_lost_and_leaves_nothing() -> None:
    mark = unique()

    async def kill_keeper(runner: CommandRunner) -> None:
        (worker,) = runner._busy
        os.kill(worker.pid, signal.SIGKILL)
        await soon(lambda: not with_mark(mark), "the spawner killed what it left")
        again = await runner.run("echo again", ANYTHING, resource="x")
        assert again.output == "again\n"

    done = running(f"setsid sleep {mark} & sleep {mark}", mark, kill_keeper)
    assert (done.status, done.exit_code) == (CommandStatus.LOST, None)
    assert done.output == "the process that ran it was lost; it may have had an effect"


def test_a_killed_spawner_costs_nothing() -> None:
    mark = unique()
    spawners = []

    async def kill_spawner(runner: CommandRunner) -> None:
        assert runner._spawner is not None
        spawners.append(runner._spawner.pid)
        os.kill(runner._spawner.pid, signal.SIGKILL)
        again = await runner.run("echo again", ANYTHING, resource="x")
        assert again.output == "again\n"
        spawners.append(runner._spawner.pid)
        for pid in with_mark(f"sleep\0{mark}"):
            os.kill(pid, signal.SIGTERM)

    done = running(f"echo begun; sleep {mark}; echo ended", mark, kill_spawner)
    assert (done.exit_code, done.output.splitlines()[0], done.output.splitlines()[-1]) == (
        0,
        "begun",
        "ended",
    )
    assert len(set(spawners)) == 2


@pytest.mark.parametrize("victim", ["worker", "spawner", "both"])
def test_what_was_killed_while_idle_is_not_missed(victim: str) -> None:
    async def main() -> None:
        async with CommandRunner() as runner:
            assert runner._spawner is not None
            pids = {"worker": [runner._idle[0].pid], "spawner": [runner._spawner.pid]}
            pids["both"] = pids["worker"] + pids["spawner"]
            for pid in pids[victim]:
                os.kill(pid, signal.SIGKILL)
            await soon(lambda: all(map(is_dead, pids[victim])), "they are dead")
            assert (await runner.run("echo again", ANYTHING, resource="x")).output == "again\n"

    asyncio.run(main())


def test_a_keeper_that_hangs_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("GRACE_S", "SWEEP_S"):
        monkeypatch.setattr(f"cheops.backends.command.runner.{name}", 0.0)
    mark = unique()

    async def main() -> None:
        async with CommandRunner(slack_s=0.1) as runner:
            brief = replace(IN_SHELL, timeout_s=0.5)
            os.kill(runner._idle[0].pid, signal.SIGSTOP)
            assert (await runner.run(f"sleep {mark}", brief, resource="x")).status is CommandStatus.LOST
            assert (await runner.run("echo again", ANYTHING, resource="x")).output == "again\n"

    asyncio.run(main())
    assert not with_mark(mark)


def test_closing_cancels_what_runs() -> None:
    mark = unique()

    async def close(runner: CommandRunner) -> None:
        waiting = asyncio.ensure_future(runner.run("true", replace(ANYTHING, no_new_privileges=False), resource="x"))
        await runner.close()
        assert not with_mark(mark)
        late = await waiting
        assert (late.status, late.output) == (CommandStatus.NOT_STARTED, "the agent is stopping")

    done = running(f"echo begun; setsid sleep {mark} & sleep {mark}", mark, close)
    assert (done.status, done.exit_code, done.output) == (CommandStatus.CANCELLED, None, "begun\n")


@pytest.mark.parametrize("times", [1, 2])
def test_cancelling_ends_the_command(times: int) -> None:
    mark = unique()
    deaf = "trap '' TERM; " if times == 2 else ""

    async def main() -> None:
        async with CommandRunner() as runner:
            line = f"{deaf}setsid sleep {mark} & sleep {mark}"
            task = asyncio.ensure_future(runner.run(line, IN_SHELL, resource="x"))
            await soon(lambda: len(with_mark(f"sleep\0{mark}")) == 2, "the command runs")
            for _ in range(times):
                task.cancel()
                await asyncio.sleep(0)
            with pytest.raises(asyncio.CancelledError):
                await task
            if times == 1:
                assert not with_mark(mark), "it is gone when the cancelled call returns"
            assert (await runner.run("echo again", ANYTHING, resource="x")).output == "again\n"

    asyncio.run(main())
    assert not with_mark(mark)


def test_a_cancelled_call_that_still_waits_for_its_turn_never_runs(tmp_path: Path) -> None:
    mark = unique()

    async def main() -> None:
        async with CommandRunner(max_parallel=1) as runner:
            first = asyncio.ensure_future(runner.run(f"sleep {mark}", IN_SHELL, resource="x"))
            await soon(lambda: with_mark(f"sleep\0{mark}"), "the first runs")
            second = asyncio.ensure_future(runner.run(f"touch {tmp_path}/ran", IN_SHELL, resource="x"))
            await asyncio.sleep(0)
            second.cancel()
            first.cancel()
            await asyncio.wait([first, second])
            assert second.cancelled()
            assert (await runner.run("true", ANYTHING, resource="x")).exit_code == 0

    asyncio.run(main())
    assert not list(tmp_path.iterdir())


def test_what_cannot_be_killed_does_not_hold_up_the_report() -> None:
    """A worker whose kills do nothing at first stands for a process that the kernel holds."""
    mark = unique()
    program = f"""
        import os, socket
        from cheops.backends.command import wire, worker
        ours, theirs = socket.socketpair()
        pid = os.fork()
        if pid == 0:
            ours.close()
            really = worker.kill
            refused = []
            worker.kill_group = lambda *_: None
            worker.kill = lambda pid: refused.append(pid) if len(refused) < 500 else really(pid)
            worker.SWEEP_S = 0.05
            worker.serve_orders(theirs)
            os._exit(0)
        theirs.close()
        assert int(wire.read_frame(ours)) == pid
        argv = (b"/bin/sh", b"-c", b"setsid sleep {mark} & echo done")
        ours.sendall(wire.frame(wire.pack_order(wire.Order(argv, (b"PATH=/usr/bin:/bin",), b"/", b"", 60.0, 100))))
        report = wire.unpack_report(wire.read_frame(ours))
        assert (report.text, report.exit_code, report.is_clean) == (b"done\\n", 0, False), report
        assert wire.read_frame(ours) is None
        os.waitpid(pid, 0)
        ours.close()
    """
    subprocess.run([sys.executable, "-c", textwrap.dedent(program)], cwd=ROOT, check=True)
    assert not with_mark(f"sleep\0{mark}")


def test_helpers_outlive_signals_that_are_meant_for_the_agent() -> None:
    mark = unique()

    async def main() -> None:
        async with CommandRunner() as runner:
            assert runner._spawner is not None
            pids = [runner._spawner.pid, runner._idle[0].pid]
            for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT):
                for pid in pids:
                    os.kill(pid, number)
            done = await runner.run(f"echo $PPID {mark}", IN_SHELL, resource="x")
            assert done.output == f"{pids[1]} {mark}\n"
            assert runner._spawner.pid == pids[0]

    asyncio.run(main())


def test_orphans_that_end_do_not_pile_up_during_a_long_run() -> None:
    done = run(
        "(true &); (true &); until [ $(wc -w </proc/$PPID/task/$PPID/children) = 1 ]; do sleep 0.02; done",
        IN_SHELL,
    )
    assert done.exit_code == 0


def test_closing_leaves_neither_spawner_nor_keepers() -> None:
    async def main() -> list[int]:
        async with CommandRunner() as runner:
            await asyncio.gather(*(runner.run("true", ANYTHING, resource="x") for _ in range(8)))
            assert runner._spawner is not None
            return [runner._spawner.pid, *(worker.pid for worker in runner._idle)]

    pids = asyncio.run(main())
    assert len(pids) > 2
    assert not [pid for pid in pids if not is_dead(pid)]


def test_workers_end_when_idle_and_start_again() -> None:
    async def scenario() -> None:
        async with CommandRunner(idle_s=0.0) as runner:
            assert runner._spawner is not None
            spawner = runner._spawner.pid
            busy = [runner.run("sleep 0.1", ANYTHING, resource="counter") for _ in range(8)]
            assert all(done.exit_code == 0 for done in await asyncio.gather(*busy))
            await soon(lambda: not descendants(spawner), "at rest only the spawner is left")
            assert runner._idle == []
            done = await runner.run("echo again", ANYTHING, resource="counter")
            assert (done.output, runner._spawner.pid) == ("again\n", spawner)

    asyncio.run(scenario())


def test_a_worker_in_use_is_kept() -> None:
    async def scenario() -> None:
        async with CommandRunner(idle_s=3600.0) as runner:
            first = await runner.run("sh -c 'echo $PPID'", ANYTHING, resource="counter")
            second = await runner.run("sh -c 'echo $PPID'", ANYTHING, resource="counter")
            assert first.output == second.output
            runner._idle[0].idle_since_s -= 3600.0  # as if it had been idle for so long
            runner._end_idle()
            assert runner._idle == []
            third = await runner.run("sh -c 'echo $PPID'", ANYTHING, resource="counter")
            assert third.output != first.output

    asyncio.run(scenario())

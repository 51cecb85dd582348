"""Commands as real processes: how they end, what they see, what they say."""

import asyncio
import contextlib
import os
import pwd
import signal
import stat
import subprocess
import sys
import textwrap
from dataclasses import replace
from pathlib import Path

import pytest
import uvloop

from cheops.backends.command.line import CommandLineError, CommandNotAllowedError
from cheops.backends.command.runner import CommandRunner, Completed
from cheops.backends.command.wire import CommandStatus
from cheops.config.command import CommandLimits, CommandSettings
from tests.backends.processes import ANYTHING, IN_SHELL, run, soon, with_mark
from tests.support.command import ROOT

AS_ROOT = pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to become another user")
EXITED = CommandStatus.EXITED
FORKED = replace(ANYTHING, limits=CommandLimits(open_files=64))  # limits need the way by fork


# -- how it ends -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("settings", [ANYTHING, FORKED], ids=["spawned", "forked"])
@pytest.mark.parametrize(
    ("line", "code", "output"),
    [
        ("true", 0, ""),
        ("echo hello", 0, "hello\n"),
        ("sh -c 'echo out; echo err >&2; echo out again; exit 3'", 3, "out\nerr\nout again\n"),
        ("sh -c 'kill -TERM $$'", -signal.SIGTERM, ""),
        ("sh -c 'echo first; kill -KILL $$'", -signal.SIGKILL, "first\n"),
        ("sh -c 'kill -PIPE $$'", -signal.SIGPIPE, ""),
        ("cat", 0, ""),
    ],
)
def test_exit(settings: CommandSettings, line: str, code: int, output: str) -> None:
    done = run(line, settings)
    assert (done.status, done.exit_code, done.output) == (EXITED, code, output)
    assert done.left_behind == 0
    assert done.duration_s > 0


def test_it_runs_on_uvloop_too() -> None:
    async def main() -> Completed:
        async with CommandRunner() as runner:
            return await runner.run("echo __ID__", ANYTHING, resource="counter")

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as loop:
        assert loop.run(main()).output == "counter\n"


def test_not_allowed_is_not_run(tmp_path: Path) -> None:
    with pytest.raises(CommandNotAllowedError):
        run(f"touch {tmp_path}/x", CommandSettings(allow=("true",)))
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("resource", ["a\0b", "\ud800"])
def test_an_id_that_no_program_can_be_given(resource: str) -> None:
    with pytest.raises(CommandLineError):
        run("echo __ID__", resource=resource)


# -- what is not started ---------------------------------------------------------------------------------


@pytest.mark.parametrize("settings", [ANYTHING, FORKED], ids=["spawned", "forked"])
def test_not_started(settings: CommandSettings, tmp_path: Path) -> None:
    plain, script, orphan = tmp_path / "plain", tmp_path / "script", tmp_path / "orphan"
    plain.write_text("echo no")
    script.write_text("echo no")
    orphan.write_text("#!/no/such/interpreter\n")
    for path in (script, orphan):
        path.chmod(stat.S_IRWXU)
    here = replace(settings, env={"PATH": str(tmp_path)})
    table = [
        ("no-such-program x", here, f"no-such-program: no such program in PATH ({tmp_path})"),
        ("plain", here, f"{plain}: permission denied (is it executable?)"),
        ("/no/such/program", here, "/no/such/program: no such file or directory"),
        (str(plain), here, f"{plain}: permission denied (is it a file, and executable?)"),
        (str(tmp_path), here, f"{tmp_path}: permission denied (is it a file, and executable?)"),
        (str(script), here, f"{script}: exec format error (a script begins with a line such as #!/bin/sh)"),
        (
            str(orphan),
            here,
            f"{orphan}: no such file or directory (the interpreter that its first line names)",
        ),
        (
            "true",
            replace(settings, cwd=tmp_path / "no"),
            f"working directory {tmp_path}/no: no such file or directory",
        ),
    ]
    for line, with_settings, why in table:
        assert run(line, with_settings) == Completed(CommandStatus.NOT_STARTED, None, why, 0.0)


def test_an_argument_list_that_is_too_long_is_not_started() -> None:
    done = run("echo " + "x" * 90_000, replace(ANYTHING, env={f"A{n}": "x" * 120_000 for n in range(60)}))
    assert done.status is CommandStatus.NOT_STARTED
    assert "argument list too long" in done.output


def test_an_unknown_user_is_not_started() -> None:
    done = run("id", replace(ANYTHING, user="no-such-user"))
    assert (done.status, done.output) == (
        CommandStatus.NOT_STARTED,
        "there is no user 'no-such-user' on this machine",
    )


# -- what it sees ----------------------------------------------------------------------------------------


def test_the_environment_is_scrubbed(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {
        "SECRET": "s",
        "PATH": "/usr/bin:/bin",
        "HOME": "/h",
        "LANG": "C.UTF-8",
        "TZ": "UTC",
    }.items():
        monkeypatch.setenv(name, value)
    done = run("env", replace(ANYTHING, env={"TZ": "Europe/Paris", "REDIS": "two words\n="}))
    assert sorted(done.output.splitlines()) == sorted(
        ["PATH=/usr/bin:/bin", "HOME=/h", "LANG=C.UTF-8", "TZ=Europe/Paris", "REDIS=two words", "="]
    )


def test_without_a_path_there_is_a_usual_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PATH")
    assert run("true").exit_code == 0


def test_the_working_directory(tmp_path: Path) -> None:
    (tmp_path / "tool").write_text("#!/bin/sh\npwd")
    (tmp_path / "tool").chmod(stat.S_IRWXU)
    assert run("pwd").output == "/\n"
    assert run("./tool", replace(ANYTHING, cwd=tmp_path)).output == f"{tmp_path}\n"
    assert run("./tool", replace(FORKED, cwd=tmp_path)).output == f"{tmp_path}\n"


@pytest.mark.parametrize("settings", [ANYTHING, FORKED], ids=["spawned", "forked"])
def test_nothing_of_the_agent_is_handed_down(settings: CommandSettings) -> None:
    status = run("grep -E '^(SigBlk|SigIgn)' /proc/self/status", settings).output
    usual = sum(1 << (number - 1) for number in signal.valid_signals())  # glibc uses two for itself
    assert [int(line.split()[1], 16) & usual for line in status.splitlines()] == [0, 0]
    assert run("ls /proc/self/fd", settings).output.split() == ["0", "1", "2", "3"], "3 is the directory it lists"
    assert run("readlink /proc/self/fd/0", settings).output == "/dev/null\n"
    pid, group, session = run("sh -c 'cut -d\" \" -f 1,5,6 /proc/$$/stat'", settings).output.split()
    assert pid == group == session


@pytest.mark.parametrize("value", ["a b", "it's", '"', "$(id)", "*", "x-", "ünï"])
def test_ids_and_files_are_one_word(value: str, tmp_path: Path) -> None:
    file = tmp_path / value
    file.write_text("content")
    done = run('sh -c \'printf "<%s>" "$1"; cat "$2"\' sh __ID__ {data}', resource=value, data=file)
    assert done.output == f"<{value}>content"
    assert run("printf '<%s>' __ID__; cat {data}", IN_SHELL, resource=value, data=file).output == done.output


def test_no_shell_unless_asked_for() -> None:
    assert run("echo $HOME ; echo *").output == "$HOME ; echo *\n"
    assert run("echo a; echo b | tr b c", IN_SHELL).output == "a\nc\n"


def test_privileges() -> None:
    line = "grep NoNewPrivs /proc/self/status"
    assert run(line).output.split() == ["NoNewPrivs:", "1"]
    assert run(line, FORKED).output.split() == ["NoNewPrivs:", "1"]
    assert run(line, replace(ANYTHING, no_new_privileges=False)).output.split() == ["NoNewPrivs:", "0"]


@AS_ROOT
def test_another_user(tmp_path: Path) -> None:
    nobody = pwd.getpwnam("nobody")
    as_nobody = replace(ANYTHING, user="nobody")
    out = run("sh -c 'id -u; id -g; id -G; echo $HOME; grep CapEff /proc/self/status'", as_nobody).output.split()
    assert out == [
        str(nobody.pw_uid),
        str(nobody.pw_gid),
        str(nobody.pw_gid),
        nobody.pw_dir,
        "CapEff:",
        "0" * 16,
    ]
    secret = tmp_path / "secret"
    secret.write_text("s")
    secret.chmod(stat.S_IRUSR)
    assert run(f"cat {secret}", as_nobody).exit_code == 1
    tmp_path.chmod(stat.S_IRWXU)
    inside = run("true", replace(as_nobody, cwd=tmp_path))
    assert (inside.status, inside.output) == (
        CommandStatus.NOT_STARTED,
        f"working directory {tmp_path}: permission denied",
    )


def test_ones_own_user_needs_no_right() -> None:
    me = pwd.getpwuid(os.geteuid())
    assert (
        run("sh -c 'id -un; echo $HOME'", replace(ANYTHING, user=me.pw_name)).output == f"{me.pw_name}\n{me.pw_dir}\n"
    )


@AS_ROOT
def test_an_agent_without_the_right_to_become_another_user() -> None:
    program = """
        from dataclasses import replace
        from tests.backends.processes import ANYTHING, IN_SHELL, run
        done = run("id", replace(ANYTHING, user="nobody"))
        assert (done.status, done.output) == ("not started", "to run as user 'nobody' the agent must run as root"), done
    """
    python = [sys.executable, "-c", textwrap.dedent(program)]
    subprocess.run(["setpriv", "--bounding-set=-setuid,-setgid", *python], cwd=ROOT, check=True)


def test_limits() -> None:
    limited = replace(ANYTHING, limits=CommandLimits(cpu_s=1, memory_bytes=1 << 28, open_files=32, processes=1000))
    soft = "sh -c 'ulimit -St; ulimit -Sv; ulimit -Sn; grep \"Max processes\" /proc/self/limits'"
    cpu, memory, files, *processes = run(soft, limited).output.split()
    assert (cpu, memory, files, processes[2]) == ("1", str((1 << 28) // 1024), "32", "1000")
    busy = run("sh -c 'while :; do :; done'", replace(ANYTHING, limits=CommandLimits(cpu_s=1)))
    assert busy.exit_code == -signal.SIGXCPU


# -- what it says ----------------------------------------------------------------------------------------


def test_invalid_utf_8_is_replaced() -> None:
    assert run(r"printf 'a\377b\303'").output == "a\N{REPLACEMENT CHARACTER}b\N{REPLACEMENT CHARACTER}"


@pytest.mark.parametrize(
    ("line", "most", "output"),
    [
        ("printf 1234", 4, "1234"),
        ("printf 12345", 4, "1234\n[cheops: 1 more bytes of output were dropped]\n"),
        (r"printf '123\n567'", 4, "123\n[cheops: 3 more bytes of output were dropped]\n"),
        ("printf 12345", 0, "[cheops: 5 more bytes of output were dropped]\n"),
        (r"printf '123\303\274'", 4, "123\n[cheops: 1 more bytes of output were dropped]\n"),
    ],
)
def test_output_is_capped(line: str, most: int, output: str) -> None:
    assert run(line, replace(ANYTHING, max_output_bytes=most)).output == output


def test_much_output_takes_no_memory() -> None:
    async def main() -> tuple[Completed, int]:
        async with CommandRunner() as runner:
            done = await runner.run("head -c 100000000 /dev/zero", ANYTHING, resource="x")
            status = Path(f"/proc/{runner._idle[0].pid}/status").read_text()
            return done, int(status.split("VmHWM:")[1].split()[0])

    done, peak_kib = asyncio.run(main())
    kept = "\0" * 65536
    assert done.output == f"{kept}\n[cheops: {100_000_000 - 65536} more bytes of output were dropped]\n"
    assert done.exit_code == 0
    assert peak_kib < 32 * 1024


def test_a_large_output_that_is_wanted_arrives() -> None:
    done = run("head -c 5000000 /dev/zero", replace(ANYTHING, max_output_bytes=8_000_000))
    assert done.output == "\0" * 5_000_000


def test_endless_output_ends_with_the_time() -> None:
    done = run("yes", replace(ANYTHING, timeout_s=0.2, max_output_bytes=6))
    assert done.status is CommandStatus.TIMED_OUT
    assert done.output.startswith("y\ny\ny\n[cheops: ")


# -- many ------------------------------------------------------------------------------------------------


def test_two_hundred_at_once(tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    os.mkfifo(gate)

    async def main() -> list[Completed]:
        async with CommandRunner(max_parallel=200) as runner:
            runs = asyncio.gather(
                *(runner.run("cat {gate}", ANYTHING, resource="x", files={"gate": gate}) for _ in range(200))
            )
            await soon(lambda: len(with_mark(str(gate))) == 200, "all are there at the same time")
            while not runs.done():  # one that is late in opening it waits for the next time
                await asyncio.sleep(0.01)
                with contextlib.suppress(OSError):
                    os.close(os.open(gate, os.O_WRONLY | os.O_NONBLOCK))
            return await runs

    assert [done.exit_code for done in asyncio.run(main())] == [0] * 200


def test_more_than_may_run_at_once_wait_in_order(tmp_path: Path) -> None:
    log, gate = tmp_path / "log", tmp_path / "gate"
    os.mkfifo(gate)

    async def main() -> None:
        async with CommandRunner(max_parallel=1) as runner:
            lines = [f"cat {gate}; echo first >>{log}", f"echo second >>{log}", f"echo third >>{log}"]
            runs = [asyncio.ensure_future(runner.run(line, IN_SHELL, resource="x")) for line in lines]
            await soon(lambda: with_mark(f"cat\0{gate}"), "the first runs")
            await asyncio.to_thread(gate.write_text, "")
            await asyncio.gather(*runs)

    asyncio.run(main())
    assert log.read_text() == "first\nsecond\nthird\n"


def test_keepers_are_used_again() -> None:
    async def main() -> set[int]:
        async with CommandRunner() as runner:
            parents = [await runner.run("sh -c 'echo $PPID'", ANYTHING, resource="x") for _ in range(5)]
            return {int(done.output) for done in parents}

    assert len(asyncio.run(main())) == 1


def test_a_runner_without_start_starts_when_needed_and_after_close_not_at_all() -> None:
    async def main() -> None:
        runner = CommandRunner()
        assert (await runner.run("true", ANYTHING, resource="x")).exit_code == 0
        await runner.close()
        await runner.close()
        late = await runner.run("true", ANYTHING, resource="x")
        assert (late.status, late.output) == (CommandStatus.NOT_STARTED, "the agent is stopping")

    asyncio.run(main())

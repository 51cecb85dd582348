"""What a command may do: nothing that this site's type does not allow, whoever sends it and however it comes.

The shell, ids, file names and arguments here are hostile; `made` is a file that only a successful attack makes.
"""

import asyncio
import json
import os
import resource as limits_of
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from cheops.backends.command.backend import CommandBackend
from cheops.backends.command.line import CommandLineError, CommandNotAllowedError, check_allowed, invocation
from cheops.backends.command.runner import CommandRunner, Completed
from cheops.config.command import MAX_WRITTEN_CHARACTERS, CommandLimits, CommandSettings, StateWriter
from cheops.config.site import parse_site
from cheops.engine.documents import Base, Message, Snapshot
from cheops.engine.events import Loaded, Outcome, Received, Result, Run, Step
from cheops.engine.settings import ResourceType, Settings
from cheops.engine.site import Site
from cheops.errors import ClientError
from cheops.log.matrix import Entry, Matrix
from cheops.log.matrix import Result as Wanted
from cheops.log.operation import Command, FileRef, Kind, MatrixRef, Operation, Origin, Seal, Stamp, Verdict
from cheops.peers.links import pack, unpack
from tests.agent.rig import Rig, until
from tests.backends.contexts import command_backend
from tests.backends.processes import run
from tests.security.sites import refused as refused_times

HOSTILE = [
    "$(touch {})",
    "`touch {}`",
    "; touch {} ;",
    "'; touch {} #",
    '"; touch {} #',
    "\ntouch {}\n",
    "&& touch {}",
    "| touch {}",
    "x > {}",
    "a\\",
    "${{IFS}}touch{}",
    "*",
    "~",
    "{{a,b}}",
    "\\'; touch {} #",
]


def made_in(folder: Path) -> Path:
    return folder / "made"


# -- ids, files and arguments ------------------------------------------------------------------------------


def all_run(lines: list[tuple[str, str]], settings: CommandSettings) -> list[Completed | ClientError]:
    """What becomes of each line, for a resource of that id."""

    async def together() -> list[Completed | ClientError]:
        async with CommandRunner() as runner:
            return [await one(runner, *item) for item in lines]

    async def one(runner: CommandRunner, line: str, id_: str) -> Completed | ClientError:
        try:
            return await runner.run(line, settings, resource=id_)
        except ClientError as error:
            return error

    return asyncio.run(together())


@pytest.mark.parametrize(
    "settings",
    [
        CommandSettings(allow=("printf ...",)),
        CommandSettings(allow=("printf %s *",), shell=True),  # noqa: S604 - to be tested
        CommandSettings(allow=("...",), shell=True),  # noqa: S604
    ],
    ids=["no-shell", "shell-with-patterns", "shell"],
)
def test_a_hostile_id_is_one_word_and_no_code(settings: CommandSettings, tmp_path: Path) -> None:
    ids = [evil.format(made_in(tmp_path)).strip("\n") for evil in HOSTILE]
    spellings = ["printf %s __ID__", "printf %s ''__ID__", "printf %s '__ID__'", 'printf %s "__ID__"']
    asked = [(line, id_) for id_ in ids for line in spellings]
    for (line, id_), done in zip(asked, all_run(asked, replace(settings, cwd=tmp_path)), strict=True):
        assert isinstance(done, Completed), (line, id_)
        assert done.output == id_, line
    assert not made_in(tmp_path).exists()


@pytest.mark.parametrize("shell", [False, True])
def test_a_hostile_argument_is_refused_or_stays_a_word(shell: bool, tmp_path: Path) -> None:
    """What a client writes after the program: where it is no word any more, it is not run."""
    lines = [(f"echo {evil.format(made_in(tmp_path))}", "n") for evil in HOSTILE]
    settings = CommandSettings(allow=("echo ...",), shell=shell, cwd=tmp_path)
    for line, done in zip(lines, all_run(lines, settings), strict=True):
        is_refused = isinstance(done, CommandLineError | CommandNotAllowedError)
        assert is_refused or (isinstance(done, Completed) and done.exit_code == 0), line
    assert not made_in(tmp_path).exists()


@pytest.mark.parametrize("name", ['a"b', "a'b", "a\\b"])
def test_quotes_in_a_file_name_do_not_open_the_quotes_of_a_shell_line(name: str) -> None:
    """`rm /data/{a"b} __ID__ {a"b}` is two words for a pattern, and would be four for the shell."""
    settings = CommandSettings(allow=("rm /data/*",), shell=True)  # noqa: S604 - to be tested
    with pytest.raises((CommandLineError, CommandNotAllowedError)):
        invocation(
            f"rm /data/{{{name}}} __ID__ {{{name}}}",
            settings,
            resource="x /etc/passwd",
            files={name: Path("/spool/f")},
        )


@pytest.mark.parametrize("shell", [False, True])
@pytest.mark.parametrize("line", ["cat __ID__", "cat '__ID__'", "cat __ID__.txt"])
def test_an_id_is_no_option(line: str, shell: bool) -> None:
    for allow in ("...", "cat ...", "cat __ID__", "cat __ID__.txt"):
        settings = CommandSettings(allow=(allow, "x"), shell=shell)
        try:
            check_allowed(line, settings, "fine")
        except CommandNotAllowedError:
            continue
        with pytest.raises(CommandLineError, match="begins with a dash"):
            check_allowed(line, settings, "--version")
        with pytest.raises(CommandLineError, match="begins with a dash"):
            invocation(line, settings, resource="-n", files={})


@pytest.mark.parametrize("option", ["--all", "-rf", "-0x", "--", "-o=x", "-@", "-1a"])
def test_a_star_is_an_argument_and_no_option(option: str) -> None:
    settings = CommandSettings(allow=("kubectl delete * *",))
    with pytest.raises(CommandNotAllowedError):
        check_allowed(f"kubectl delete pod {option}", settings)
    with pytest.raises(CommandLineError):
        check_allowed("kubectl delete pod __ID__", settings, option)
    check_allowed(f"kubectl delete pod {option}", CommandSettings(allow=("kubectl delete * -*",)))
    check_allowed(f"kubectl delete pod {option}", CommandSettings(allow=("kubectl delete ...",)))


@pytest.mark.parametrize("number", ["-12", "-1.5", "-2e10", "-", "'- milk'", "x-y"])
def test_a_number_below_zero_is_an_argument(number: str) -> None:
    check_allowed(f"redis-cli incrby n {number}", CommandSettings(allow=("redis-cli incrby * *",)))


# -- what a shell would make of it -------------------------------------------------------------------------


@pytest.mark.parametrize("word", ["/data/*", "/data/.?/etc", "/data/[.]./x", "/data/{a,b}", "/data/{..,x}/etc"])
def test_a_pattern_allows_the_words_that_run_and_no_others(word: str) -> None:
    settings = CommandSettings(allow=("rm /data/*",), shell=True)  # noqa: S604 - to be tested
    with pytest.raises(CommandNotAllowedError):
        check_allowed(f"rm {word}", settings)


def test_with_patterns_a_shell_finds_no_files(tmp_path: Path) -> None:
    """Also where an id brings the star, and where the quotes would be misread."""
    (tmp_path / "a.txt").touch()
    with_patterns = CommandSettings(allow=("echo ...",), shell=True, cwd=tmp_path)  # noqa: S604 - to be tested
    assert run("echo '*' __ID__", with_patterns, resource="*").output == "* *\n"
    anything = replace(with_patterns, allow=("...",))
    assert run("echo *", anything).output == "a.txt\n"


# -- the state of another site -----------------------------------------------------------------------------

WRITER = StateWriter("store put __ID__ {state} --quiet")


@pytest.mark.parametrize("state", ["", "plain", "it's", "two words\nand lines", "'\"'", "{state}", "$(x)", "é'"])
def test_the_own_command_of_a_checkpoint_is_recognised(state: str) -> None:
    command = WRITER(state)
    assert command is not None
    assert WRITER.matches(command)


@pytest.mark.parametrize(
    "line",
    [
        "sh -c 'touch made'",
        "store put __ID__ x --quiet; touch made",
        "store put __ID__ x --quiet --more",
        "store put __ID__ 'a' b --quiet",
        "store put __ID__ a$(touch made) --quiet",
        "store put __ID__ 'a'\"'\"'; touch made --quiet",
        "store put __ID__ 'unclosed --quiet",
        "store put other x --quiet",
        "store put __ID__  --quiet",
        "",
    ],
)
def test_any_other_command_is_not(line: str) -> None:
    assert not WRITER.matches(Command(line))
    assert not WRITER.matches(Command("store put __ID__ x --quiet", (FileRef("f", "0" * 64, 7),)))


TYPE = """
site: here
types:
  note:
    allow: ["note add __ID__ *", "old-store put __ID__ *"]
    reset: touch reset
    read: cat __ID__
    checkpoint: {write: "touch {state}"}
    cwd: @FOLDER@
"""


@pytest.fixture
def commands(tmp_path: Path) -> CommandBackend:
    return command_backend(parse_site(TYPE.replace("@FOLDER@", str(tmp_path)), tmp_path / "site.yaml"))


def ran(commands: CommandBackend, *steps: Step) -> tuple[Outcome, ...]:
    async def alone() -> tuple[Outcome, ...]:
        try:
            return await commands.run(Run("n", 1, steps, rtype="note"))
        finally:
            await commands.context.commands.close()

    return asyncio.run(alone())


def test_a_state_of_a_peer_brings_no_command_of_its_own(commands: CommandBackend, tmp_path: Path) -> None:
    own = Step(None, Command("touch state"), of_base=True)
    evil = Step(None, Command("touch made made-too"), of_base=True)
    fine, refused = ran(commands, own, evil)
    assert fine.result is Result.OK
    assert refused.result is Result.KO
    assert refused.refused
    assert "'touch made made-too' is not allowed" in refused.output
    assert sorted(path.name for path in tmp_path.glob("*")) == ["files", "state"]


def test_a_state_in_the_words_of_another_site_needs_permission(commands: CommandBackend) -> None:
    """The other site's checkpoint.write may be another one: then it is a command like any other."""
    (outcome,) = ran(commands, Step(None, Command("old-store put __ID__ x"), of_base=True))
    assert "no such program" in outcome.output


def test_the_engine_says_when_a_state_came_from_a_peer() -> None:
    here, peer = Origin("here", "1"), Origin("peer", "1")
    site = Site(here, Settings({"note": ResourceType("note", reset=Command("touch reset"))}))
    rules = Matrix([Entry("set", "set", Wanted.TAKE_ONE)])
    stamp = Stamp(1_000, 0, peer)
    made = Operation(
        "n",
        "note",
        "set",
        Kind.NORMAL,
        Command("note add n x"),
        peer,
        1,
        {},
        stamp,
        MatrixRef(rules.hash, stamp),
        ("here", "peer"),
        verdict=Verdict.OK,
        seal=Seal({}, stamp, (peer,)),  # only what a seal covers counts as forgotten
    )
    base = Base({peer: 1}, Command("touch made"))
    snapshot = Snapshot({peer: 1}, {}, base, MatrixRef(rules.hash, stamp), (), root=stamp)
    message = Message("n", "1", (made,), matrices=(rules,), known={peer: 1}, snapshot=snapshot)
    effects = [*site.step(Received("peer", message), 2_000)]
    effects += site.step(Loaded("n", ()), 2_001)
    steps = [step for effect in effects if isinstance(effect, Run) for step in effect.steps]
    assert Command("touch made") in [step.payload for step in steps]
    assert all(step.of_base and not step.of_type for step in steps if step.payload.line == "touch made")


# -- bounds ------------------------------------------------------------------------------------------------


def test_a_command_sees_nothing_of_the_agents_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CHEOPS_TOKEN", "planted-secret")
    monkeypatch.setenv("LD_PRELOAD_", "x")
    done = run("env", CommandSettings(allow=("env",), env={"MINE": "1"}))
    names = {line.partition("=")[0] for line in done.output.splitlines()}
    assert "planted-secret" not in done.output
    assert names <= {"PATH", "HOME", "LANG", "TZ", "MINE"}


def test_a_command_holds_no_file_of_the_agent_open() -> None:
    done = run("ls -l /proc/self/fd", CommandSettings(allow=("ls ...",)))
    links = [line.rpartition(" -> ")[2] for line in done.output.splitlines() if " -> " in line]
    assert len(links) == 4, links  # its three streams, and the directory that it reads
    assert not any("socket" in link or ".db" in link for link in links)


def test_new_privileges_cannot_be_gained_unless_the_type_says_so() -> None:
    allow = CommandSettings(allow=("grep ...",))
    assert run("grep NoNewPrivs /proc/self/status", allow).output.split() == ["NoNewPrivs:", "1"]
    open_ = replace(allow, no_new_privileges=False)
    assert run("grep NoNewPrivs /proc/self/status", open_).output.split()[-1] in "01"


def test_limits_are_those_of_the_kernel() -> None:
    """Of processes the kernel counts all of a user's: the limit is set, and for root without effect."""
    most = limits_of.getrlimit(limits_of.RLIMIT_NPROC)[1]
    processes = 5_000 if most in (limits_of.RLIM_INFINITY, -1) else min(5_000, most)
    bounds = CommandLimits(cpu_s=7, memory_bytes=512 * 1024 * 1024, open_files=33, processes=processes)
    done = run("cat /proc/self/limits", CommandSettings(allow=("cat ...",), limits=bounds))
    found = {line[:26].strip(): line[26:47].strip() for line in done.output.splitlines()}
    assert found["Max cpu time"] == "7"
    assert found["Max address space"] == str(512 * 1024 * 1024)
    assert found["Max open files"] == "33"
    assert found["Max processes"] == str(processes)


def test_a_command_runs_as_the_user_of_its_type() -> None:
    done = run("id -un", CommandSettings(allow=("id ...",), user="nobody"))
    if os.geteuid() == 0:
        assert done.output == "nobody\n"
    else:
        assert done.output == "to run as user 'nobody' the agent must run as root"


# -- real sites --------------------------------------------------------------------------------------------

NOTE: dict[str, Any] = {
    "allow": ["touch *"],
    "cwd": "@FOLDER@",
    "on_error": "touch handled",
    "matrix": [{"before": "set", "after": "set", "result": "take-one"}],
}
RULES = Matrix([Entry("set", "set", Wanted.TAKE_ONE)])
THIEF = Origin("thief", "1")


@pytest.fixture(scope="module")
def rig(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    """Two sites of which the second allows less, and a third that is only a name."""
    rig = Rig(tmp_path_factory.mktemp("commands"), {"note": NOTE}, ("site1", "site2", "thief"))
    path = rig.folder("site2") / "site.yaml"
    config = yaml.safe_load(path.read_text())
    config["types"]["note"]["allow"] = ["touch fine-*"]
    path.write_text(yaml.safe_dump(config))
    rig.start("site1", "site2")
    yield rig
    rig.close()


def stolen(resource: str, line: str, files: tuple[FileRef, ...] = ()) -> Operation:
    stamp = Stamp(int(time.time() * 1000), 0, THIEF)
    return Operation(
        resource,
        "note",
        "set",
        Kind.NORMAL,
        Command(line, files),
        THIEF,
        1,
        {},
        stamp,
        MatrixRef(RULES.hash, stamp),
        ("site2", "thief"),
        verdict=Verdict.OK,
    )


def test_a_command_is_checked_where_it_is_submitted(rig: Rig) -> None:
    lines = rig.exec("site1", "one", "set", "touch anything", sites="site1")
    assert [line["Status"] for line in lines] == ["OK"]
    with pytest.raises(Exception, match="'rm anything' is not allowed"):
        rig.exec("site1", "one", "set", "rm anything", sites="site1")
    assert (rig.folder("site1") / "anything").exists()


def test_and_again_where_it_runs(rig: Rig) -> None:
    lines = rig.exec("site1", "two", "set", "touch made-two", sites="site1 & site2")
    said = {line["Site"]: (line["Status"], line["Output"]) for line in lines}
    assert said["site1"][0] == "OK"
    assert said["site2"][0] == "KO"
    assert "'touch made-two' is not allowed; the type allows: 'touch fine-*'" in said["site2"][1]
    assert not (rig.folder("site2") / "made-two").exists()
    assert not (rig.folder("site2") / "handled").exists(), "on_error is for what the application refuses"


@pytest.mark.parametrize("line", ["touch made-three", "touch fine-x made-three", "sh -c 'touch made-three'"])
def test_also_when_it_comes_by_the_sync_endpoint(rig: Rig, line: str) -> None:
    resource = f"three-{len(line)}"
    body = pack("thief", [Message(resource, "1", (stolen(resource, line),), matrices=(RULES,))])
    headers = {"Content-Type": "application/json"}
    rig.request("site2", "POST", "/peer/messages", body, headers)

    def refused() -> Any:
        status = json.loads(rig.request("site2", "GET", f"/api/v1/resources/{resource}"))
        return status if "not allowed" in json.dumps(status) else None

    status = until(refused, f"for site2 to refuse it:\n{rig.log('site2')}")
    assert "the type allows: 'touch fine-*'" in json.dumps(status)
    assert refused_times(rig, "site2", "command not allowed") >= 1
    assert not (rig.folder("site2") / "made-three").exists()
    assert rig.request("site2", "GET", "/db/"), "the agent is unharmed"


def test_a_file_hash_that_is_a_path_is_no_document() -> None:
    sent = pack("thief", [Message("four", "1", (stolen("four", "touch fine-4", (FileRef("f", "../../x", 1),)),))])
    (message,), (refused,) = unpack(sent)[1:3]
    assert (message.ops, refused.id) == ((), "op/four/thief/1/1")


def test_a_line_has_a_length() -> None:
    with pytest.raises(CommandLineError, match="100000 are allowed"):
        check_allowed("x" * (MAX_WRITTEN_CHARACTERS + 1), CommandSettings(allow=("...",)))

"""Ids that commands run on: whatever id a client or another site sends, nothing outside of the directory that the
operator named is read or written, by any command of the type."""

import json
import re
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from cheops.backends.command.line import CommandLineError, CommandNotAllowedError, check_allowed, invocation
from cheops.backends.command.paths import path_problem
from cheops.config.command import CommandSettings
from cheops.engine.documents import Message
from cheops.log.matrix import Entry, Matrix
from cheops.log.matrix import Result as Wanted
from cheops.log.operation import Command, Kind, MatrixRef, Operation, Origin, Stamp, Verdict
from cheops.peers.links import pack
from tests.agent.rig import RefusedByAgentError, Rig, until

UPWARDS = ["../../../../x", "..", "a/../../x", "/etc/passwd", "/", "-rf", "a//b", "a/", "x\ny", "x\x1b[2J", "\u202ex"]


# -- lines -------------------------------------------------------------------------------------------------


@pytest.fixture
def below(tmp_path: Path) -> CommandSettings:
    """A folder with `pages`, in it links that lead out and links that do not, and a secret beside it."""
    folder = tmp_path / "app"
    (folder / "pages" / "sub").mkdir(parents=True)
    (tmp_path / "secret").mkdir()
    (tmp_path / "secret" / "key").write_text("secret")
    (folder / "key").symlink_to(tmp_path / "secret" / "key")
    (folder / "pages" / "out").symlink_to(tmp_path / "secret")
    (folder / "pages" / "up").symlink_to("..")
    (folder / "pages" / "again").symlink_to("sub")
    (folder / "pages" / "nowhere").symlink_to(tmp_path / "secret" / "new")
    return CommandSettings(
        allow=("cat pages/__ID__", "cat __ID__", "tool --file=pages/__ID__", "rm pages/*"), cwd=folder
    )


@pytest.mark.parametrize("shell", [False, True])
@pytest.mark.parametrize("line", ["cat pages/__ID__", "cat __ID__", "echo x >> pages/__ID__", "echo __ID__.txt"])
@pytest.mark.parametrize("id_", UPWARDS)
def test_no_command_runs_on_such_an_id(below: CommandSettings, line: str, id_: str, shell: bool) -> None:
    anything = replace(below, allow=("...",), shell=shell)
    with pytest.raises(CommandLineError):
        invocation(line, anything, resource=id_, files={})


@pytest.mark.parametrize("shell", [False, True])
@pytest.mark.parametrize("line", ["cat pages/__ID__", "tool --file=pages/__ID__"])
@pytest.mark.parametrize("id_", ["out", "out/key", "out/new", "up", "up/key", "nowhere", "again/../../key"])
def test_a_link_that_leads_out_of_the_directory_is_refused(
    below: CommandSettings, line: str, id_: str, shell: bool
) -> None:
    for settings in (below, replace(below, shell=shell), replace(below, allow=("...",), shell=shell)):
        with pytest.raises((CommandNotAllowedError, CommandLineError)):
            check_allowed(line, settings, id_)
        with pytest.raises((CommandNotAllowedError, CommandLineError)):
            invocation(line, settings, resource=id_, files={})


def test_a_link_beside_the_directory_is_refused_for_the_bare_id(below: CommandSettings) -> None:
    with pytest.raises(CommandNotAllowedError, match="'key' leads out of "):
        invocation("cat __ID__", below, resource="key", files={})


@pytest.mark.parametrize("line", ["> __ID__", ">>__ID__ echo x", "cat <__ID__", "echo x>'__ID__'", 'cat "__ID__"'])
def test_in_a_line_for_the_shell_links_are_found_too(below: CommandSettings, line: str) -> None:
    anything = replace(below, allow=("...",), shell=True)  # noqa: S604 - to be tested
    with pytest.raises(CommandNotAllowedError, match="leads out of "):
        invocation(line, anything, resource="key", files={})
    invocation(line, anything, resource="new", files={})


@pytest.mark.parametrize("id_", ["new", "sub/new", "again/new", "a:b", "x..y", "sub", "deep/er/new", "été"])
def test_everything_below_the_directory_is_allowed(below: CommandSettings, id_: str) -> None:
    for line in ("cat pages/__ID__", "tool --file=pages/__ID__"):
        assert invocation(line, below, resource=id_, files={}).argv[-1].endswith(id_)


@pytest.mark.parametrize("word", ["pages/out/key", "pages/up/key", "pages/nowhere", "pages/__ID__/key"])
def test_a_star_after_a_directory_stays_below_it(below: CommandSettings, word: str) -> None:
    with pytest.raises(CommandNotAllowedError, match="leads out of "):
        check_allowed(f"rm {word}", below, "out")
    check_allowed("rm pages/sub/x", below)
    check_allowed("rm pages/__ID__", below, "sub")


def test_a_pattern_that_allows_it_is_enough(below: CommandSettings) -> None:
    """Of several patterns that match, one must hold."""
    check_allowed("rm pages/out/key", replace(below, allow=("rm pages/*", "rm *")))


@pytest.mark.parametrize("pattern", ["cat __ID__*", "cat page*", "cat pages/*", "cat a=*"])
def test_no_part_of_a_word_leads_upwards(below: CommandSettings, pattern: str) -> None:
    start = pattern.split()[1].removesuffix("*")
    with pytest.raises(CommandNotAllowedError):
        check_allowed(f"cat {start}/../../secret/key", replace(below, allow=(pattern,)), "pages")


def test_without_a_directory_an_id_names_nothing_of_the_machine() -> None:
    rooted = CommandSettings(allow=("...",))
    for id_ in ("etc/passwd", "proc/self/environ", "etc/new"):
        with pytest.raises(CommandNotAllowedError, match="no 'cwd'"):
            invocation("cat __ID__", rooted, resource=id_, files={})
    for id_ in ("counter", "home", "no-such-folder-here/x"):
        invocation("redis-cli get __ID__", rooted, resource=id_, files={})


def test_the_directory_itself_may_be_a_link(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "cwd").symlink_to("real")
    assert path_problem("x", "", tmp_path / "cwd") is None
    (tmp_path / "real" / "pages").symlink_to("/var")
    assert path_problem("pages/x", "pages/", tmp_path / "cwd") is None, "the operator wrote 'pages/'"
    assert f"leads out of {tmp_path / 'cwd'}" in (path_problem("pages/x", "", tmp_path / "cwd") or "")


@pytest.mark.parametrize("shell", [False, True])
@pytest.mark.parametrize("id_", ["data/store.db", "data", "data/files/x", "site.yaml", "pages/to-data/store.db"])
def test_what_belongs_to_the_agent_is_no_resource(tmp_path: Path, id_: str, shell: bool) -> None:
    """Its data and its configuration are often below `cwd`."""
    (tmp_path / "pages").mkdir()
    (tmp_path / "pages" / "to-data").symlink_to(tmp_path / "data")
    private = (str(tmp_path / "data"), str(tmp_path / "site.yaml"))
    settings = CommandSettings(allow=("...",), cwd=tmp_path, shell=shell)
    for line in ("cat __ID__", "tee ./__ID__", "tool --file=__ID__"):
        with pytest.raises(CommandNotAllowedError, match="belongs to the agent"):
            invocation(line, settings, resource=id_, files={}, private=private)
        invocation(line, settings, resource="pages/store.db", files={}, private=private)
    starred = CommandSettings(allow=("cat ./*",), cwd=tmp_path, shell=shell)
    with pytest.raises(CommandNotAllowedError, match="belongs to the agent"):
        check_allowed(f"cat ./{id_}", starred, private=private)
    inside = CommandSettings(allow=("cat __ID__",), cwd=tmp_path / "data" / "pages", shell=shell)
    invocation("cat __ID__", inside, resource="x", files={}, private=private)


# -- real sites --------------------------------------------------------------------------------------------

PAGE: dict[str, Any] = {
    "allow": ["tee pages/__ID__", "echo * __ID__"],
    "cwd": "@FOLDER@",
    "read": "cat __ID__",
    "reset": "tee __ID__",
    "checkpoint": {"write": "touch __ID__ {state}", "after": 1},
    "on_error": "touch __ID__",
    "matrix": [{"before": "set", "after": "set", "result": "take-one"}],
}
RULES = Matrix([Entry("set", "set", Wanted.TAKE_ONE)])
THIEF = Origin("thief", "1")


@pytest.fixture(scope="module")
def rig(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    rig = Rig(tmp_path_factory.mktemp("ids"), {"page": PAGE}, ("site1", "site2", "thief"))
    for site in ("site1", "site2"):
        (rig.folder(site) / "pages").mkdir()
    rig.start("site1", "site2")
    yield rig
    rig.close()


def contents(folder: Path) -> set[str]:
    """The files of a site, apart from those of the agent."""
    found = {str(path.relative_to(folder)) for path in folder.rglob("*")}
    return {name for name in found if not name.startswith("data") and name not in ("log", "site.yaml")}


def stolen(resource: str, line: str, kind: Kind = Kind.NORMAL) -> Operation:
    stamp = Stamp(int(time.time() * 1000), 0, THIEF)
    return Operation(
        resource,
        "page",
        "set",
        kind,
        Command(line),
        THIEF,
        1,
        {},
        stamp,
        MatrixRef(RULES.hash, stamp),
        ("site2", "thief"),
        verdict=Verdict.OK,
    )


def refusals(rig: Rig, site: str) -> float:
    """How often it refused anything, as its metrics say."""
    metrics = rig.request(site, "GET", "/metrics").decode()
    return sum(map(float, re.findall(r"^cheops_refused_total{.*} (\S+)$", metrics, re.MULTILINE)))


@pytest.mark.parametrize("kind", [Kind.NORMAL, Kind.FORCE, Kind.DELETE])
@pytest.mark.parametrize("id_", ["../made", "../../../../../../tmp/cheops-made", "pages/../../made", "@FOLDER@/made"])
def test_an_id_of_another_site_does_not_leave_the_directory(rig: Rig, id_: str, kind: Kind) -> None:
    """The document is refused: nothing is made or kept, the site serves, and says so."""
    folder = rig.folder("site2")
    before = contents(folder.parent)
    resource = f"{id_.replace('@FOLDER@', str(folder))}-{kind.value}"
    body = pack("thief", [Message(resource, "1", (stolen(resource, "tee pages/__ID__", kind),), matrices=(RULES,))])
    refused = refusals(rig, "site2")
    rig.request("site2", "POST", "/peer/messages", body, {"Content-Type": "application/json"})
    until(lambda: refusals(rig, "site2") > refused, f"for site2 to refuse it:\n{rig.log('site2')}")
    lines = rig.exec("site2", f"after-{kind.value}-{len(id_)}", "set", "tee pages/__ID__", sites="site2")
    assert [line["Status"] for line in lines] == ["OK"]
    assert resource not in json.dumps(json.loads(rig.request("site2", "GET", "/api/v1/resources")))
    after = contents(folder.parent)
    assert {name for name in after - before if "after-" not in name} <= {"site2/data"}
    assert not list(Path("/tmp").glob("cheops-made*"))  # noqa: S108 - what the attack would make


@pytest.mark.parametrize("id_", ["data/store.db", "site.yaml", "data/audit.log"])
def test_a_client_reads_and_changes_nothing_of_the_agent(rig: Rig, id_: str) -> None:
    before = (rig.folder("site1") / "site.yaml").read_bytes()
    with pytest.raises(RefusedByAgentError, match="belongs to the agent") as refused:
        rig.exec("site1", id_, "set", "echo x __ID__", sites="site1")
    assert refused.value.status == 403
    with pytest.raises(RefusedByAgentError, match="belongs to the agent"):
        rig.post("site1", f"/show/{id_.replace('/', '%2F')}", {"command": "", "sites": "site1"})
    assert (rig.folder("site1") / "site.yaml").read_bytes() == before


@pytest.mark.parametrize("id_", ["/etc/passwd", "-n", "a//b"])
def test_a_client_gets_a_clear_refusal(rig: Rig, id_: str) -> None:
    """The path of a key file as an id, and a viewer reads it: the type allows `echo * __ID__` and reads `cat __ID__`."""
    with pytest.raises(RefusedByAgentError, match="the id ") as refused:
        rig.exec("site1", id_, "set", "echo x __ID__", sites="site1")
    assert refused.value.status == 400
    with pytest.raises(RefusedByAgentError) as shown:
        rig.post("site1", f"/show/{id_.replace('/', '%2F')}", {"command": "", "sites": "site1"})
    assert "root:" not in shown.value.detail


def test_a_link_in_the_directory_is_not_followed_out(rig: Rig) -> None:
    secret = rig.folder("site1").parent / "secret"
    secret.write_text("secret of another application")
    (rig.folder("site1") / "link").symlink_to(secret)
    with pytest.raises(RefusedByAgentError, match="leads out of "):
        rig.exec("site1", "link", "set", "echo x __ID__", sites="site1")
    lines = rig.exec("site1", "fine", "set", "tee pages/__ID__", sites="site1")
    assert [line["Status"] for line in lines] == ["OK"]
    (rig.folder("site1") / "fine").symlink_to(secret)
    with pytest.raises(RefusedByAgentError, match="'fine' leads out of "):
        rig.post("site1", "/show/fine", {"command": "", "sites": "site1"})

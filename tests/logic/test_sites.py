"""Edits of one text at sites that are cut off from each other: the engine with the logic, and real agents with files."""

import json
import os
import re
import shlex
import sys
from contextlib import suppress
from pathlib import Path
from random import Random

import msgspec
import pytest

from cheops.api.models.operations import Explanation
from cheops.api.models.resources import ResourceStatus
from cheops.config.command import StateWriter
from cheops.config.site import parse_site
from cheops.engine.settings import Checkpoint, ResourceType
from cheops.engine.status import Overall
from cheops.log.matrix import Matrix
from cheops.log.operation import Command
from cheops.logic.edit import difference, encoded, hash_of
from cheops.logic.program import CHANGED, run
from cheops.logic.text import text_logic
from cheops.sim.apps import App, RefusedError
from cheops.yaml_file import YamlFileError
from tests.agent.rig import MakeRig, Rig, until
from tests.demo.tutorial import commands
from tests.engine.lab import Lab
from tests.support.command import run_process

SITES = ("site1", "site2", "site3")


def _line(before: str, after: str, folder: str = "notes", program: str = "cheops-text") -> str:
    return shlex.join((program, f"{folder}/__ID__", hash_of(before), encoded(difference(before, after))))


# -- the engine ---------------------------------------------------------------------------------------------


def _in_a_file(folder: Path) -> App:
    """The real program on a file: the state is what it would print."""
    file = folder / "note"

    def apply(state: str, command: str) -> str:
        words = shlex.split(command)
        file.write_text(state)
        try:
            match words:
                case ["edit", _, hash_, edit]:
                    run([str(file), hash_, edit])
                case ["load", text]:
                    run(["--load", str(file), text])
                case ["reset"]:
                    return ""
                case _:
                    raise RefusedError(command)
        except ValueError as error:
            raise RefusedError(str(error)) from None
        return file.read_text()

    type_ = ResourceType("note", reset=Command("reset"), logic=text_logic)
    return App("note", "", apply, Matrix(), type_, lambda _: ("edit", ""))


def _loading(state: str) -> Command:
    return Command(shlex.join(("load", json.dumps(state))))


def _save(lab: Lab, site: str, mark: str, random: Random) -> None:
    """The editor at a site adds a line anywhere in the text that its site has."""
    before = lab.states("n", site)[0]
    lines = before.splitlines(keepends=True)
    lines.insert(random.randint(0, len(lines)), f"{mark}\n")
    lab.submit(site, "n", _line(before, "".join(lines), program="edit"))


@pytest.mark.parametrize("checkpoint", [False, True])
@pytest.mark.parametrize("seed", range(6))
def test_cuts_at_random_lose_no_line(tmp_path: Path, seed: int, *, checkpoint: bool) -> None:
    random, marks = Random(seed), list[str]()  # noqa: S311
    lab, app = Lab("abc", idle_ms=10_000_000), _in_a_file(tmp_path)
    changes = {"checkpoint": Checkpoint(Command("read"), _loading, 5)} if checkpoint else {}
    lab.make("n", app, "abc", **changes)
    lab.submit("a", "n", _line("", "title\n", program="edit"))
    lab.run()
    for _ in range(8):
        alone = random.choice("abc")
        lab.partition(alone, "abc".replace(alone, ""))
        for site in random.choices("abc", k=random.randint(1, 4)):
            marks.append(f"line {len(marks)} of {site}")
            _save(lab, site, marks[-1], random)
            lab.now_ms += 1_000
            if random.random() < 0.7:
                lab.run()
        lab.run()
        lab.heal()
        lab.run()
        texts = lab.states("n", "abc")
        assert len(set(texts)) == 1
        assert [lab.status(site, "n").overall for site in "abc"] == [Overall.CONVERGED] * 3
    assert sorted(texts[0].splitlines()) == sorted(["title", *_accepted(lab, marks)])


def _accepted(lab: Lab, marks: list[str]) -> list[str]:
    """Those of operations that did not fail at their origin. A save that came before the text changed there fails."""
    refused = {mark for mark in marks for line in lab.output if "VOID" in line and f"{mark}\\n" in line}
    return [mark for mark in marks if mark not in refused]


# -- the program --------------------------------------------------------------------------------------------


def test_the_program_edits_a_text_of_which_it_knows_the_hash(tmp_path: Path) -> None:
    file = tmp_path / "note"
    assert run([str(file)]) == ""
    run([str(file), hash_of(""), '["milk\\n"]'])
    run([str(file), hash_of("milk\n"), '["soy ",5]'])
    assert (run([str(file)]), [one.name for one in tmp_path.iterdir()]) == ("soy milk\n", ["note"])
    old, new = hash_of("milk\n"), hash_of("soy milk\n")
    for words, why in (
        ([old, '["x",5]'], f"{CHANGED}: it is {new} now, not {old}"),
        (["-", "[5]"], "the edit was made for a text of 5 characters, this one has 9"),
        (["-", "what"], "Expecting value"),
        (["nothing", "[9]"], "'nothing' is no hash"),
    ):
        with pytest.raises(ValueError, match=re.escape(why)):
            run([str(file), *words])
    assert file.read_text() == "soy milk\n"


@pytest.mark.parametrize("text", ["", "a", "a\n", "a\n\n", 'it\'s "so"\r\n\té😀'])
def test_a_state_comes_back_as_it_was(tmp_path: Path, text: str) -> None:
    """Byte by byte: an edit fits only the text that it was made for."""
    file, other = tmp_path / "one", tmp_path / "other"
    file.write_bytes(text.encode())
    command = StateWriter("cheops-text --load FILE {state}")(run(["--save", str(file)]))
    assert command is not None
    run(["--load", str(other), shlex.split(command.line)[3]])
    assert other.read_bytes() == file.read_bytes()


# -- real agents --------------------------------------------------------------------------------------------

NOTE = {
    "logic": "text",
    "allow": ["cheops-text notes/__ID__ * *"],
    "read": "cheops-text notes/__ID__",
    "reset": "rm -f notes/__ID__",
    "checkpoint": {
        "read": "cheops-text --save notes/__ID__",
        "write": "cheops-text --load notes/__ID__ {state}",
        "after": 6,
    },
}


def _path(folder: Path) -> str:
    """With the programs of these tests."""
    programs = folder / "bin"
    return f"{programs if programs.exists() else commands(folder)}:{os.environ['PATH']}"


def _typed(rig: Rig, site: str, id_: str, change: str, *options: str) -> str:
    """`cheops edit`, with an editor that makes this change by itself. Return what the command printed."""
    done = run_process("edit", id_, "--url", rig.url(site), *options, env={**os.environ, "EDITOR": change})
    assert done.code == 0, done.err
    return done.out


def test_two_editors_who_are_cut_off(tmp_path: Path, make_rig: MakeRig) -> None:
    """Both save several times while neither site knows of the other. Everything is in the text at all sites."""
    rig = make_rig({"note": {**NOTE, "cwd": "@FOLDER@", "env": {"PATH": _path(tmp_path)}}}, *SITES)
    for site in SITES:
        (rig.folder(site) / "notes").mkdir()
    rig.start()
    made = _typed(rig, "site1", "plan", "printf 'bread\\nmilk\\n' >", "--sites", " & ".join(SITES))
    assert made == "saved at site1: site1:1\n"
    until(lambda: texts(rig) == {"bread\nmilk\n"})
    rig.stop("site2")
    rig.stop("site3")
    _typed(rig, "site1", "plan", "sed -i '$atea'")
    _typed(rig, "site1", "plan", "sed -i 's/milk/soy milk/'")
    assert _typed(rig, "site1", "plan", "true") == "nothing was changed\n"
    rig.stop("site1")
    rig.start("site2")
    _typed(rig, "site2", "plan", "sed -i '$asalt'")
    _typed(rig, "site2", "plan", "sed -i '1iShopping:'")
    _typed(rig, "site2", "plan", "sed -i 's/milk/milk, 2 l/'")
    rig.start("site1", "site3")
    merged = "Shopping:\nbread\nsoy milk, 2 l\ntea\nsalt\n"
    until(lambda: texts(rig) == {merged}, "for the merged text")
    until(lambda: overall(rig, "site3") == "CONVERGED")
    steps = [step.text for step in explained(rig, "site1").steps]
    assert any("concurrent with site2:1, site2:2 and site2:3" in step for step in steps)
    assert any(step.startswith("site1 replayed to merge concurrent operations: ") for step in steps)
    # Beyond six operations, the history becomes the text. What is edited then is merged as before.
    _typed(rig, "site3", "plan", "sed -i '$ajam'")
    _typed(rig, "site2", "plan", "sed -i '$d'")
    until(lambda: texts(rig) == {merged})
    until(lambda: "a checkpoint contains the state" in " ".join(s.text for s in explained(rig, "site2").steps))
    rig.stop("site3")
    _typed(rig, "site1", "plan", "sed -i 's/tea/green tea/'")
    rig.stop("site1")
    rig.stop("site2")
    rig.start("site3")
    _typed(rig, "site3", "plan", "sed -i 's/tea/tea, loose/'")
    rig.start("site1", "site2")
    until(lambda: texts(rig) == {merged.replace("tea", "green tea, loose")}, "for the text after the checkpoint")
    until(lambda: overall(rig, "site1") == "CONVERGED")


def texts(rig: Rig, *sites: str, folder: str = "notes") -> set[str]:
    files = (rig.folder(site) / folder / "plan" for site in sites or SITES)
    with suppress(FileNotFoundError):  # a replay begins with the reset
        return {file.read_text() for file in files}
    return set()


def overall(rig: Rig, site: str) -> str:
    found = rig.request(site, "GET", "/api/v1/resources/plan/status")
    return str(msgspec.json.decode(found, type=ResourceStatus).overall)


def explained(rig: Rig, site: str) -> Explanation:
    return msgspec.json.decode(rig.request(site, "GET", "/api/v1/resources/plan/explain"), type=Explanation)


def test_an_edit_that_came_too_late_moves_over_what_others_wrote(tmp_path: Path, make_rig: MakeRig) -> None:
    """The text changes at the site while the editor is open."""
    rig = make_rig({"note": {**NOTE, "cwd": "@FOLDER@", "env": {"PATH": _path(tmp_path)}}}, "site1")
    (rig.folder("site1") / "notes").mkdir()
    rig.start()
    _typed(rig, "site1", "plan", "printf 'bread\\n' >", "--sites", "site1")
    other = _line("bread\n", "title\nbread\n")
    (tmp_path / "other").write_text(other)
    cheops = f"{tmp_path}/bin/cheops exec --url {rig.url('site1')} --id plan --type edit"
    editor = f"{cheops} --command \"$(cat {tmp_path}/other)\" > /dev/null && sed -i '$abutter'"
    assert _typed(rig, "site1", "plan", editor) == "saved at site1: site1:3\n"
    assert (rig.folder("site1") / "notes" / "plan").read_text() == "title\nbread\nbutter\n"


def test_a_site_runs_nothing_by_the_logic_that_its_type_does_not_allow(tmp_path: Path, make_rig: MakeRig) -> None:
    """The merged command begins with words that other sites wrote."""
    wide = {**NOTE, "cwd": "@FOLDER@", "env": {"PATH": _path(tmp_path)}, "reset": "rm -f secret/__ID__"}
    wide["allow"] = ["cheops-text secret/__ID__ * *"]
    rig = make_rig({"note": wide}, *SITES)
    for site in SITES:
        (rig.folder(site) / "secret").mkdir()
    config = rig.folder("site3") / "site.yaml"
    config.write_text(config.read_text().replace("cheops-text secret/", "cheops-text notes/"))
    rig.start("site1")
    assert rig.exec_here("site1", "plan", "edit", _line("", "one\n", "secret"))["Status"] == "OK"
    rig.stop("site1")
    rig.start("site2")
    assert rig.exec_here("site2", "plan", "edit", _line("", "two\n", "secret"))["Status"] == "OK"
    rig.start("site1", "site3")
    until(lambda: texts(rig, "site1", folder="secret") == {"one\ntwo\n"})
    until(lambda: overall(rig, "site1") == "DIVERGED")
    assert [*(rig.folder("site3") / "secret").iterdir()] == []
    assert "is not allowed" in rig.log("site3")


def test_a_start_without_loro_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "loro", None)
    monkeypatch.delitem(sys.modules, "cheops.logic.text", raising=False)
    with pytest.raises(YamlFileError) as refused:
        parse_site("site: a\ntypes:\n  t: {logic: text, reset: rm -f __ID__}\n", Path("site.yaml"))
    assert str(refused.value) == (
        "site.yaml:3: types.t.logic: the plugin 'text' (cheops.logic) needs the package loro, which is not installed: "
        "pip install 'cheops[text]'"
    )


def test_a_text_needs_a_reset() -> None:
    with pytest.raises(YamlFileError, match="'reset' is missing: the command that deletes the text"):
        parse_site("site: a\ntypes:\n  t: {logic: text}\n", Path("site.yaml"))

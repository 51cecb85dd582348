"""What every backend has from its base class: the end of a run, errors as outcomes, files, and refusals."""

import asyncio
from pathlib import Path

import pytest

from cheops.backends.command.backend import CommandBackend
from cheops.backends.command.runner import CommandRunner
from cheops.backends.protocol import Backend, BackendContext, FileAccess
from cheops.config.site import parse_site
from cheops.engine.events import Outcome, Result, Run, Step
from cheops.errors import CheopsError, ClientError
from cheops.log.operation import Command, FileRef, OpId, Origin
from cheops.node.backends import Backends
from cheops.store.files import FileStore
from cheops.store.room import DiskRoom
from tests.backends.contexts import no_drift, no_replica

OUTCOMES = {"ok": Result.OK, "ko": Result.KO, "retry": Result.RETRY, "maybe": Result.MAYBE}


class Scripted(Backend):
    """Does what the payload says."""

    async def run_step(self, run: Run, step: Step) -> Outcome:
        del run
        line = step.payload.line
        if line == "refuse":
            raise ClientError("not allowed here")
        if line == "busy":
            raise CheopsError("try again")
        if line == "bug":
            raise ZeroDivisionError
        return Outcome(OUTCOMES[line], line)

    async def read(self, rtype: str, resource: str, request: str) -> Outcome:
        raise NotImplementedError


class Releasing(Scripted):
    releases_files = True


class Scene:
    def __init__(self, folder: Path, kind: type[Backend] = Scripted) -> None:
        self.refusals: list[tuple[str, str]] = []
        self.fetched: list[tuple[str, FileRef]] = []
        config = parse_site("site: here\ntypes: {t: {reset: clear}}\n", folder / "site.yaml")
        files = FileAccess(
            lambda _hash: None, lambda _resource, _hash: False, lambda *wanted: self.fetched.append(wanted)
        )
        report = lambda *refusal: self.refusals.append(refusal)  # noqa: E731 - it has no other name
        self.backend = kind(
            BackendContext(config, config.types, files, CommandRunner(), lambda _id: None, report, no_replica, no_drift)
        )

    def run(self, *lines: str, until_failure: bool = False, files: tuple[FileRef, ...] = ()) -> list[Outcome]:
        op = OpId(Origin("there", "1"), 1)
        steps = tuple(Step(op, Command(line, files)) for line in lines)
        return list(asyncio.run(self.backend.run(Run("r", 1, steps, until_failure=until_failure, rtype="t"))))


@pytest.mark.parametrize(
    ("lines", "until_failure", "expected"),
    [
        (("ok", "ok"), False, ["ok", "ok"]),
        (("ok", "ko", "ok"), False, ["ok", "ko", "ok"]),
        (("ok", "ko", "ok"), True, ["ok", "ko"]),
        (("retry", "ok"), False, ["retry"]),
        (("maybe", "ok"), False, ["maybe"]),
    ],
)
def test_a_run_ends_where_the_next_step_must_not_run(
    tmp_path: Path, lines: tuple[str, ...], until_failure: bool, expected: list[str]
) -> None:
    outcomes = Scene(tmp_path).run(*lines, until_failure=until_failure)
    assert [outcome.output for outcome in outcomes] == expected
    assert all(outcome.timing.at_ms > 0 for outcome in outcomes)


def test_errors_become_outcomes(tmp_path: Path) -> None:
    scene = Scene(tmp_path)
    refused, busy = scene.run("refuse", "busy")
    assert (refused.result, refused.refused, refused.output) == (Result.KO, True, "not allowed here")
    assert (busy.result, busy.refused, busy.output) == (Result.RETRY, False, "try again")
    assert scene.refusals == [("there", "not allowed here")]
    with pytest.raises(ZeroDivisionError):
        scene.run("bug")


def test_a_step_waits_for_its_files_unless_the_backend_copes_without(tmp_path: Path) -> None:
    files = (FileRef("notes.txt", "ab12", 5),)
    scene = Scene(tmp_path)
    (outcome,) = scene.run("ok", files=files)
    assert (outcome.result, outcome.output) == (Result.RETRY, "not here yet: notes.txt")
    assert scene.fetched == [("r", files[0])]
    (outcome,) = Scene(tmp_path, Releasing).run("ok", files=files)
    assert outcome.result is Result.OK


def test_undo_is_refused_rather_than_ignored(tmp_path: Path) -> None:
    backend = Scene(tmp_path).backend
    with pytest.raises(ClientError, match="operations of type 't' cannot be undone") as refused:
        backend.undo("t", Command("ok"), None)
    assert refused.value.status == 501


def test_a_backend_that_fails_is_named_and_its_outcome_is_unknown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fail(*_: object) -> Outcome:
        raise ZeroDivisionError

    config = parse_site("site: here\ntypes: {t: {reset: clear}}\n", tmp_path / "site.yaml")
    backends = Backends(
        config,
        FileStore(tmp_path / "files", DiskRoom(tmp_path, 0)),
        CommandRunner(),
        lambda _site, _reason: None,
        no_drift,
    )
    monkeypatch.setattr(CommandBackend, "run_step", fail)
    run = Run("r", 1, (Step(OpId(Origin("there", "1"), 1), Command("set")),), rtype="t")
    (outcome,) = asyncio.run(backends.run(run))
    assert outcome.result is Result.MAYBE
    assert outcome.output == (
        "the backend 'command' failed, and it is unknown how far it got: ZeroDivisionError(); the agent's log has the details"
    )

"""Commands that run as another user get the files of their operation, and nobody else does."""

import asyncio
import hashlib
import os
import pwd
import stat
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from cheops.backends.command.user_files import FOLDER, PASSABLE, UserFiles
from cheops.config.site import parse_site
from cheops.engine.events import Outcome, Result, Run, Step
from cheops.errors import CheopsError
from cheops.log.operation import Command, FileRef
from cheops.store.files import make_private
from tests.backends.contexts import command_backend
from tests.backends.processes import ANYTHING, run
from tests.backends.test_command import AS_ROOT


@pytest.fixture
def data() -> Iterator[Path]:
    """A folder that other users can reach: pytest's own they cannot."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(PASSABLE)
        data = Path(folder) / "data"
        make_private(data, PASSABLE)
        make_private(data / "files")
        (data / "files" / "hash").write_text("content")
        yield data


@AS_ROOT
def test_a_command_of_another_user_reads_a_copy_of_its_own(data: Path) -> None:
    nobody = pwd.getpwnam("nobody")
    stored = data / "files" / "hash"
    as_nobody = replace(ANYTHING, user="nobody")
    assert run("cat {f}", as_nobody, f=stored).exit_code == 1, "the store itself is closed to it"
    with UserFiles(data, 0).lent_to("nobody", {"f": stored}) as files:
        assert run("cat {f}", as_nobody, f=files["f"]).output == "content"
        folder = files["f"].parent
        assert (folder.stat().st_uid, stat.S_IMODE(folder.stat().st_mode)) == (nobody.pw_uid, 0o700)
        assert stat.S_IMODE(files["f"].stat().st_mode) == 0o400
        assert run(f"ls {data / FOLDER}", as_nobody).exit_code != 0, "it sees no directory of another command"
        as_other = replace(ANYTHING, user="daemon")
        assert run("cat {f}", as_other, f=files["f"]).exit_code == 1
    assert list((data / FOLDER).iterdir()) == []
    assert stored.read_text() == "content"


@AS_ROOT
def test_a_copy_is_not_made_where_it_does_not_fit(data: Path) -> None:
    lent = UserFiles(data, 2**60).lent_to("nobody", {"f": data / "files" / "hash"})
    with pytest.raises(CheopsError, match="does not fit"):
        lent.__enter__()
    assert list((data / FOLDER).iterdir()) == []


@AS_ROOT
def test_the_backend_lends_the_files_of_an_operation(data: Path) -> None:
    text = "site: here\ntypes: {page: {allow: ['cat {*}'], user: nobody}}\n"
    backend = command_backend(parse_site(text, data.parent / "site.yaml"))
    content = b"content of an operation"
    hash_ = hashlib.sha256(content).hexdigest()
    path = data.parent / "files" / hash_
    path.write_bytes(content)
    path.chmod(0o600)
    step = Step(None, Command("cat {f}", (FileRef("f", hash_, len(content)),)))

    async def run_step() -> Outcome:
        try:
            return await backend.run_step(Run("r", 1, (step,), rtype="page"), step)
        finally:
            await backend.context.commands.close()

    outcome = asyncio.run(run_step())
    assert (outcome.result, outcome.output) == (Result.OK, content.decode())
    assert list((data / FOLDER).iterdir()) == []


def test_the_agents_own_user_reads_the_store_itself(data: Path) -> None:
    files = {"f": data / "files" / "hash"}
    for user in (None, pwd.getpwuid(os.geteuid()).pw_name, "no-such-user"):
        with UserFiles(data, 0).lent_to(user, files) as lent:
            assert lent == files
    assert not (data / FOLDER).exists()


def test_copies_that_a_crash_left_are_deleted(data: Path) -> None:
    (data / FOLDER / "left").mkdir(parents=True)
    UserFiles(data, 0).clear()
    assert not (data / FOLDER).exists()

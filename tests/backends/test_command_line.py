"""How ids and files get into a command, and that they stay what they are there."""

import subprocess
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cheops.backends.command.line import CommandLineError, CommandNotAllowedError, Invocation, invocation
from cheops.config.command import CommandLimits, CommandSettings
from cheops.errors import ClientError
from cheops.log.names import command_problem
from tests.backends.processes import ANYTHING, IN_SHELL

FILES = {"deploy.yaml": Path("/spool/it's here/a b"), "x": Path("/x"), "my file": Path("/$(id)")}


def is_accepted(resource: str) -> bool:
    """Others are refused: tests/log/test_names.py, tests/security/test_commands.py."""
    return command_problem(resource) is None


def words(line: str, resource: str = "counter", files: dict[str, Path] = FILES) -> tuple[str, ...]:
    return invocation(line, ANYTHING, resource=resource, files=files).argv


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("redis-cli incrby __ID__ 13", ("redis-cli", "incrby", "counter", "13")),
        ("echo pre-__ID__-__ID__", ("echo", "pre-counter-counter")),
        ("kubectl apply -f {deploy.yaml}", ("kubectl", "apply", "-f", "/spool/it's here/a b")),
        ("tool --file={x},{deploy.yaml}", ("tool", "--file=/x,/spool/it's here/a b")),
        ("cat '{my file}'", ("cat", "/$(id)")),
        ("echo {} { } {x", ("echo", "{}", "{", "}", "{x")),
        ("""echo '{"a": {"b": 1}}' "{'c'}" """, ("echo", '{"a": {"b": 1}}', "{'c'}")),
        ("""awk '{print}' a{b}c""", ("awk", "{print}", "a{b}c")),
    ],
)
def test_placeholders_are_filled_in_after_splitting(line: str, expected: tuple[str, ...]) -> None:
    assert words(line) == expected


def test_what_is_filled_in_is_not_filled_in_again() -> None:
    assert words("echo __ID__ {x}", resource="{x}", files={"x": Path("/__ID__")}) == (
        "echo",
        "{x}",
        "/__ID__",
    )


@pytest.mark.parametrize("shell", [False, True])
def test_an_id_does_not_lead_out_of_what_is_allowed(shell: bool) -> None:
    below = CommandSettings(allow=("rm /data/*", "echo ..."), shell=shell)
    invocation("rm /data/__ID__", below, resource="a/b..c", files={})
    for line in ("rm /data/__ID__", "echo __ID__"):
        with pytest.raises(CommandLineError, match=r"the id has a part '\.' or '\.\.'"):
            invocation(line, below, resource="../etc", files={})
    with pytest.raises(CommandNotAllowedError, match=r"the command 'rm /data/a/\.\./\.\./etc' is not allowed"):
        invocation("rm /data/__ID__/../../etc", below, resource="a", files={})


def test_without_files_all_braces_stay() -> None:
    assert words("echo {deploy.yaml}", files={}) == ("echo", "{deploy.yaml}")


def test_a_file_that_did_not_come_along() -> None:
    with pytest.raises(CommandLineError) as caught:
        words("kubectl apply -f {deploy.yml}")
    assert str(caught.value) == (
        "no file 'deploy.yml' was sent with the command; did you mean {deploy.yaml}? There are: deploy.yaml, my file, x. "
        "If no file is meant, put the braces in quotes (character 18):\n"
        "  kubectl apply -f {deploy.yml}\n"
        "                   ^"
    )


@pytest.mark.parametrize(
    "line",
    ["printf %s __ID__", 'printf %s "__ID__"', "printf %s '__ID__'", "printf %s \\a\"__ID__\"'__ID__'__ID__"],
)
@settings(max_examples=25, suppress_health_check=[HealthCheck.too_slow])  # each starts a shell
@given(resource=st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=20).filter(is_accepted))
def test_in_a_shell_an_id_is_never_code(line: str, resource: str) -> None:
    assert shown(invocation(line, IN_SHELL, resource=resource, files={})) in {
        resource,
        f"a{resource}{resource}{resource}",
    }


@pytest.mark.parametrize(
    "evil", ["'; echo pwned; '", '"; echo pwned; "', "$(echo pwned)", "`id`", "a  *", "\\"]
)
@pytest.mark.parametrize(
    "line",
    ["printf %s __ID__", "printf %s '__ID__'", 'printf %s "__ID__"'],
)
def test_in_a_shell_known_tricks_do_not_work(line: str, evil: str) -> None:
    out = shown(invocation(line, IN_SHELL, resource=evil, files={}))
    assert out == evil


@pytest.mark.parametrize("line", ['echo "$(echo __ID__)"', "echo # don't\necho '__ID__'", "cat <<'X'\n__ID__\nX"])
@pytest.mark.parametrize("evil", ["'; touch {}; '", '"; touch {}; "', "$(touch {})", "`touch {}`"])
def test_where_the_quotes_are_misread_an_id_is_still_no_code(line: str, evil: str, tmp_path: Path) -> None:
    shown(invocation(line, IN_SHELL, resource=evil.format(tmp_path / "made"), files={}))
    assert not list(tmp_path.iterdir())


def test_in_a_shell_files_are_words_too() -> None:
    made = invocation("printf '<%s>' {deploy.yaml} \"{my file}\"", IN_SHELL, resource="r", files=FILES)
    assert shown(made) == "</spool/it's here/a b></$(id)>"
    assert "CHEOPS_ID" not in made.env, "what the line does not name is not set"


def shown(made: Invocation) -> str:
    done = subprocess.run(made.argv, env=dict(made.env), capture_output=True, check=True)
    return done.stdout.decode()


def test_in_a_shell_that_may_do_all_the_shell_splits() -> None:
    line = "cat <<END # don't\n__ID__\nEND\n"
    assert invocation(line, IN_SHELL, resource="r", files={}).argv[:2] == ("/bin/sh", "-c")


@pytest.mark.parametrize(
    ("wrong", "problem"),
    [
        ({"timeout_s": 0}, "timeout_s is 0"),
        ({"timeout_s": float("nan")}, "timeout_s is nan"),
        ({"timeout_s": float("inf")}, "timeout_s is inf"),
        ({"max_output_bytes": -1}, "max_output_bytes is -1"),
        ({"cwd": Path("data")}, "cwd is 'data'; it must be an absolute path"),
        ({"env": {"A=B": "1"}}, "env: 'A=B' cannot be set"),
        ({"env": {"": "1"}}, "env: '' cannot be set"),
        ({"env": {"A": "\0"}}, "env: 'A' cannot be set"),
    ],
)
def test_settings_that_make_no_sense(wrong: dict[str, object], problem: str) -> None:
    with pytest.raises(ClientError, match=problem):
        CommandSettings(allow=("...",), **wrong)  # type: ignore[arg-type]  # wrong on purpose


def test_limits_that_make_no_sense() -> None:
    with pytest.raises(ClientError, match="limits: open_files is 0"):
        CommandLimits(open_files=0)

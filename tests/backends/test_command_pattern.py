"""Which commands a type allows."""

import pytest

from cheops.backends.command.line import CommandLineError, CommandNotAllowedError, check_allowed
from cheops.config.command import CommandPatternError, CommandSettings

ALLOWED = [
    ("redis-cli incrby * *", "redis-cli incrby counter 13"),
    ("redis-cli incrby * *", "redis-cli  incrby 'two words' -12"),
    ("redis-cli incrby * *", "redis-cli incrby __ID__ ''"),
    ("redis-cli ...", "redis-cli"),
    ("redis-cli ...", "redis-cli set a b EX 5"),
    ("kubectl apply -f {*}", "kubectl apply -f {deploy.yaml}"),
    ("...", "rm -rf /"),
    ("*", "uptime"),
    ("/opt/*/bin/run-*", "/opt/app/bin/run-now"),
    ("echo 'a b'", 'echo "a b"'),
    ("echo a[1]?", "echo 'a[1]?'"),
    ("echo *", "echo 'two\nlines'"),
    ("cat *", "cat ../other"),
    ("cat /data/*", "cat /data/..x"),
]
REFUSED = [
    ("redis-cli incrby * *", "redis-cli incrby counter"),
    ("redis-cli incrby * *", "redis-cli incrby counter 13 14"),
    ("redis-cli incrby * *", "redis-cli flushall"),
    ("redis-cli incrby * *", "redis-cli INCRBY a 1"),
    ("redis-cli ...", "redis-cli2 set"),
    ("redis-cli ...", "/opt/redis-cli set"),
    ("*", "uptime -p"),
    ("echo a?", "echo ab"),
    ("echo a.c", "echo abc"),
    ("/opt/app/*", "/opt/app/../../bin/sh"),
    ("cat /data/*", "cat /data/.."),
    ("dd if=/data/*", "dd if=/data/a/../../etc/shadow"),
]
# In a shell a pattern allows one command, so what could make two of it, or send it elsewhere, is refused.
META = [
    "; rm x",
    "| sh",
    "& rm x",
    "$HOME",
    "`id`",
    "> f",
    "< f",
    "\nrm x",
    "\rx",
    "(x)",
    "$(id)",
    "# x",
    "\\\nrm",
]


@pytest.mark.parametrize(("pattern", "line"), ALLOWED)
@pytest.mark.parametrize("others", [(), ("nothing like it",)])
def test_allowed(pattern: str, line: str, others: tuple[str, ...]) -> None:
    check_allowed(line, CommandSettings(allow=(*others, pattern)))


@pytest.mark.parametrize(("pattern", "line"), REFUSED)
def test_refused(pattern: str, line: str) -> None:
    with pytest.raises(CommandNotAllowedError) as caught:
        check_allowed(line, CommandSettings(allow=("id", pattern)))
    assert str(caught.value) == f"the command '{line}' is not allowed; the type allows: 'id', '{pattern}'"
    assert caught.value.status == 403


def test_without_patterns_nothing_is_allowed() -> None:
    with pytest.raises(CommandNotAllowedError, match="the command 'true' is not allowed; the type allows: none"):
        check_allowed("true", CommandSettings(allow=()))


def in_shell(*patterns: str) -> CommandSettings:
    return CommandSettings(allow=patterns, shell=True)  # noqa: S604 - to be tested


@pytest.mark.parametrize("end", META)
def test_a_shell_line_is_one_command(end: str) -> None:
    line = f"redis-cli get x {end}"
    with pytest.raises(CommandNotAllowedError, match="not allowed in a shell command"):
        check_allowed(line, in_shell("redis-cli ..."))
    with pytest.raises(CommandNotAllowedError):
        check_allowed(line, in_shell("...", "redis-cli ..."))
    check_allowed(line, in_shell("..."))
    check_allowed(line, CommandSettings(allow=("redis-cli ...",)))


def test_a_harmless_shell_line_is_allowed() -> None:
    check_allowed(" ls '*.txt' \"[a]\" a\\?b {file.txt} ~ x#y\n", in_shell("ls ..."))


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("", "the command is empty"),
        (" \t", "the command is empty"),
        ("echo 'abc", "this quote is not closed (character 6):\n  echo 'abc\n       ^"),
        ("echo \"a\" 'b' \"c'd", "this quote is not closed (character 14):"),
        ("echo abc\\", "nothing follows this backslash (character 9):\n  echo abc\\\n          ^"),
        ("echo a\0b", "the command holds a NUL character (character 7):\n  echo a\N{REPLACEMENT CHARACTER}b"),
        ("x" * 100_001, "the command has 100001 characters; 100000 are allowed"),
    ],
)
def test_a_line_that_makes_no_sense(line: str, problem: str) -> None:
    with pytest.raises(CommandLineError) as caught:
        check_allowed(line, CommandSettings(allow=("...",)))
    assert str(caught.value).startswith(problem)


@pytest.mark.parametrize(
    ("pattern", "problem"),
    [
        ("", "it is empty"),
        ("... x", "'...' can only be the last word"),
        ("a ... ...", "'...' can only be the last word"),
        ("echo 'x", "a quote is not closed"),
    ],
)
def test_a_pattern_that_makes_no_sense_is_refused_with_the_settings(pattern: str, problem: str) -> None:
    with pytest.raises(CommandPatternError, match=problem):
        CommandSettings(allow=(pattern,))


def test_a_long_word_without_an_id_is_looked_at_once() -> None:
    """The time must not grow with the square of the length: that would be half an hour here."""
    for _ in range(20):
        check_allowed("echo " + 99_000 * "a", in_shell("..."))
        check_allowed("echo " + 19_000 * "__ID_", in_shell("..."))


def test_every_word_with_an_id_of_a_shell_line_is_checked() -> None:
    for line in ("cat /data/__ID__", "x=1;cat </data/__ID__.txt>y", "cat 'a'/data/__ID__/__ID__"):
        check_allowed(line, in_shell("..."), "n")
        with pytest.raises((CommandNotAllowedError, CommandLineError)):
            check_allowed(line, in_shell("..."), "../n")

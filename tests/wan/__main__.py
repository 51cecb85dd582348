"""The bed by hand: `python -m tests.wan up 3 --delay 25` in one terminal, the other commands in another.

A command that changes a bed changes the one that was made with `up`; where there are several, or for the bed
of a running test, `--bed` names it.
"""

import argparse
import os
import sys
from collections.abc import Callable

from tests.wan import measure
from tests.wan.bed import Wan, missing
from tests.wan.controls import Controls, LinkStatus, controls_of
from tests.wan.record import NAMESPACES, Record, WanError, all_records, remove
from tests.wan.tun import enter

Arguments = argparse.Namespace


def say(line: str = "") -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def main(argv: list[str] | None = None) -> int:
    arguments = _parser().parse_args(argv)
    try:
        problem = missing() or arguments.action(arguments)
    except WanError as error:
        problem = str(error)
    if problem:
        sys.stderr.write(f"{problem}\n")
    return 1 if problem else 0


def up(arguments: Arguments) -> None:
    names = arguments.names.split(",") if arguments.names else arguments.hosts
    try:
        with Wan(names, delay_ms=arguments.delay, by_hand=True, ipv6=arguments.ipv6) as wan:
            _introduce(wan)
            wan.wait()
    except KeyboardInterrupt:
        say()
    say("The bed is down.")


def _introduce(wan: Wan) -> None:
    say(f"bed {wan.bed}, {wan.delay_ms:g} ms from each host to each other")
    for host in wan.hosts.values():
        say(f"  {host.name:20} {host.address:12} namespace {host.namespace}")
    first, *others = wan.hosts.values()
    say("In another terminal, for example:")
    say(f"  python -m tests.wan exec {first.name} -- python3 -m http.server --bind {first.address}")
    for other in others[:1]:
        say(f"  python -m tests.wan exec {other.name} -- curl http://{first.address}:8000/")
        say(f"  python -m tests.wan cut {first.name} {other.name}")
        say("  python -m tests.wan heal")
    say("Ctrl-C takes it down, and all that runs in it.")


def down(arguments: Arguments) -> None:
    """Clear away what dead beds left; a living bed is only taken down if it is named."""
    if arguments.bed:
        record = chosen(all_records(), arguments.bed)
        if record.is_alive():
            with controls_of(record) as controls:
                controls.ask({"do": "stop"})
            say(f"bed {record.bed} goes down")
            return
    dead = [record for record in all_records() if not record.is_alive()]
    for record in dead:
        remove(record)
        say(f"cleared away bed {record.bed}, whose owner (process {record.owner_pid}) is gone")
    if not dead:
        say("nothing to clear away")


def show(arguments: Arguments) -> None:
    records = [chosen(all_records(), arguments.bed)] if arguments.bed else all_records()
    for record in records:
        state = f"of process {record.owner_pid}" if record.is_alive() else "is dead; `down` clears it away"
        say(f"bed {record.bed} {state}{', made by hand' if record.by_hand else ''}")
        for name, address in record.addresses.items():
            say(f"  {name:20} {address:12} namespace {record.namespace(name)}")
        if record.is_alive():
            with controls_of(record) as controls:
                for status in controls.links().values():
                    say(f"  {link_in_words(status)}")
    if not records:
        say("there is no bed")


def link_in_words(status: LinkStatus) -> str:
    rule = "cut" if status.cut else f"{status.delay_ms:g} ms, loses {status.loss:.0%}"
    rule += f", {status.rate_kbit:g} kbit/s" if status.rate_kbit else ""
    rule += f", at most {status.mtu_bytes} bytes" if status.mtu_bytes else ""
    rule += "" if status.opens else ", takes no connections"
    rule += f", forgets after {status.idle_s:g} s" if status.idle_s else ""
    return f"{status.source} → {status.target}: {rule}; {status.passed} packets passed, {status.dropped} dropped"


def execute(arguments: Arguments) -> None:
    record = chosen(all_records(), arguments.bed)
    if arguments.host not in record.addresses:
        raise WanError(f"there is no host '{arguments.host}'; the bed has {', '.join(record.addresses)}")
    command = arguments.command[1:] if arguments.command[:1] == ["--"] else arguments.command
    if not command:
        raise WanError("say what to run: exec HOST -- COMMAND")
    enter(NAMESPACES / record.namespace(arguments.host))
    try:
        os.execvp(command[0], command)  # noqa: S606  the user's own command, without a shell
    except OSError as error:
        raise WanError(f"cannot run {command[0]}: {error}") from None


def chosen(records: list[Record], bed: str | None) -> Record:
    """The bed that is meant: the one named, or the only living one that was made by hand."""
    if bed:
        found = [record for record in records if record.bed == bed]
        return found[0] if found else _none_such(f"there is no bed '{bed}'")
    by_hand = [record for record in records if record.by_hand and record.is_alive()]
    if len(by_hand) > 1:
        return _none_such(f"there are several beds: {', '.join(r.bed for r in by_hand)}; name one with --bed")
    return by_hand[0] if by_hand else _none_such("no bed is up; `python -m tests.wan up` makes one")


def _none_such(problem: str) -> Record:
    raise WanError(problem)


def tell_measures(_: Arguments) -> None:
    for line in measure.report():
        say(line)


def steering(verb: Callable[[Controls, Arguments], None]) -> Callable[[Arguments], None]:
    """A command that is one call of Controls on the bed that is meant."""

    def action(arguments: Arguments) -> None:
        with controls_of(chosen(all_records(), arguments.bed)) as controls:
            verb(controls, arguments)

    return action


def _delay(controls: Controls, arguments: Arguments) -> None:
    match arguments.what:
        case [ms]:
            controls.delay_all(_number(ms))
        case [a, b, ms]:
            controls.delay(a, b, _number(ms), one_way=arguments.one_way)
        case _:
            raise WanError("delay MS for all, or delay HOST HOST MS")


def _loss(controls: Controls, arguments: Arguments) -> None:
    match arguments.what:
        case [rate]:
            controls.loss_all(_number(rate), seed=arguments.seed)
        case [a, b, rate]:
            controls.loss(a, b, _number(rate), seed=arguments.seed, one_way=arguments.one_way)
        case _:
            raise WanError("loss RATE for all, or loss HOST HOST RATE")


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise WanError(f"'{text}' is not a number") from None


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.wan", description=__doc__)
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    def command(name: str, help_text: str, action: Callable[[Arguments], None]) -> argparse.ArgumentParser:
        made = commands.add_parser(name, help=help_text, description=help_text)
        made.set_defaults(action=action)
        if name not in {"up", "measure"}:
            made.add_argument("--bed", help="the id of the bed that is meant")
        return made

    made = command("up", "make a bed and keep it until Ctrl-C", up)
    made.add_argument("hosts", type=int, nargs="?", default=3, help="how many hosts: site1, site2, … (3)")
    made.add_argument("--names", help="names instead, with commas between")
    made.add_argument("--delay", type=float, default=0.0, metavar="MS", help="delay of each direction (0)")
    made.add_argument("--ipv6", action="store_true", help="IPv6 addresses, and no others")
    command("list", "show all beds, their hosts and links", show)
    command("down", "clear away what dead beds left; with --bed take down that one, even if alive", down)
    command("measure", "measure what the bed itself adds to delays, and what it can carry", tell_measures)
    made = command("exec", "run a command in a host: exec HOST -- COMMAND", execute)
    made.add_argument("host")
    made.add_argument("command", nargs=argparse.REMAINDER)
    _add_steering(command)
    return parser


def _add_steering(
    command: Callable[[str, str, Callable[[Arguments], None]], argparse.ArgumentParser],
) -> None:
    made = command("cut", "cut two hosts off from each other", steering(_cut))
    made.add_argument("a")
    made.add_argument("b")
    made.add_argument("--one-way", action="store_true", help="only what A sends to B is lost")
    made = command("isolate", "cut a host off from all", steering(lambda c, a: c.isolate(a.host)))
    made.add_argument("host")
    made = command("partition", "split into groups: partition a b,c", steering(_partition))
    made.add_argument("groups", nargs="+")
    for name, help_text, verb in (
        ("heal", "end the cuts between two hosts, or all", lambda c, a: c.heal(*_two(a))),
        ("restore", "as the bed started: no cut, no loss, first delay", lambda c, a: c.restore(*_two(a))),
    ):
        command(name, help_text, steering(verb)).add_argument("hosts", nargs="*")
    for name, help_text, act in (
        ("delay", "set delays: delay [HOST HOST] MS", _delay),
        ("loss", "set losses: loss [HOST HOST] RATE", _loss),
    ):
        made = command(name, help_text, steering(act))
        made.add_argument("what", nargs="+")
        made.add_argument("--one-way", action="store_true")
        made.add_argument("--seed", type=int, default=0)


def _cut(controls: Controls, arguments: Arguments) -> None:
    controls.cut(arguments.a, arguments.b, one_way=arguments.one_way)


def _partition(controls: Controls, arguments: Arguments) -> None:
    controls.partition(*(group.split(",") for group in arguments.groups))


def _two(arguments: Arguments) -> list[str]:
    if len(arguments.hosts) not in {0, 2}:
        raise WanError("name two hosts, or none for all")
    return list(arguments.hosts)


if __name__ == "__main__":
    sys.exit(main())

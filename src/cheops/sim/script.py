"""Scenario scripts: a sequence of events in a text file, with the output below each command.

One command per line, and its output indented below it. `replay` returns the whole file with new output; a test
compares the two, and a person reads the difference. So a scenario is an explanation that stays true.

    sites a b c                                 create sites that are up and see each other
    resource n counter at a b c                 an application, and where: used by the submits that follow
    submit a n inc "inc 5"                      at site a, an operation of type inc with this command
    partition a | b c                           and `heal`
    deliver                                     all messages, and what follows from them, until nothing more happens
    log n                                       the operations at each site: effective, without effect, waiting
    state n                                     the state of each application

The other commands are below, each with its usage. A submit includes the sites and the matrix only at a site that
does not know the resource yet, as clients do.
"""

import inspect
import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from random import Random
from typing import TypeVar

from cheops.engine.events import Resolved, Retried, Submitted
from cheops.engine.settings import ResourceType
from cheops.errors import ClientError
from cheops.log.matrix import Entry, Matrix, Result, result_named
from cheops.log.operation import Command, Kind, OpId, Origin
from cheops.sim.apps import APPS, App, RefusedError
from cheops.sim.scripted_world import Flight, Resource, ScriptedWorld, Trouble
from cheops.sim.transcript import describe_log, describe_state, group_sites

T = TypeVar("T")

_COMMAND_MS = 10  # of virtual time per command, so that a later command has a later stamp


class ScriptError(ClientError):
    """A line that cannot be carried out."""


def replay(text: str) -> str:
    """The script with what its commands print now; raises ScriptError with the line's number."""
    world, lines = ScriptedWorld(), []
    for number, line in enumerate(text.splitlines(), start=1):
        if line[:1].isspace():
            continue  # what a command printed when the script was last replayed
        lines.append(line)
        if line and not line.startswith("#"):
            try:
                _execute(world, line)
            except ClientError as error:
                raise ScriptError(f"line {number}: {error}") from error
            lines += (f"  {output}" for output in world.output)
            world.output.clear()
    return "".join(f"{line}\n" for line in lines)


# -- applications that only scenarios use ---------------------------------------------------------------


def _deployment(state: int, line: str) -> int:
    del state
    match line.split():
        case ["create" | "apply", replicas] if replicas.isdecimal():
            return int(replicas)
        case ["create" | "apply", replicas]:
            raise RefusedError(f"replicas: '{replicas}' is not an integer")
    raise RefusedError(f"unknown command: {line}")


def _string(state: str, line: str) -> str:
    match line.split():
        case ["clear"]:
            return ""
        case ["set", word]:
            return word
        case ["append", word]:
            return state + word
        case ["shift", places]:  # the letters that leave on the left come back on the right
            cut = int(places) % max(1, len(state))
            return state[cut:] + state[:cut]
    raise RefusedError(f"unknown command: {line}")


def _invent_nothing(random: Random) -> tuple[str, str]:
    raise NotImplementedError(f"scripts say what is run, not {random}")


_DEPLOYMENT = App(
    "deployment",
    0,
    _deployment,
    Matrix([Entry("apply", "apply", Result.TAKE_ONE)]),
    ResourceType("deployment"),
    _invent_nothing,
)
_STRING = App(
    "string",
    "",
    _string,
    Matrix(
        [
            Entry("set", "append", Result.KEEP_ORDER),
            Entry("set", "shift", Result.KEEP_ORDER),
            Entry("set", "set", Result.TAKE_ONE),
        ]
    ),
    ResourceType("string", reset=Command("clear")),
    _invent_nothing,
)
APPLICATIONS = APPS | {app.name: app for app in (_DEPLOYMENT, _STRING)}


# -- commands ------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Command:
    usage: str
    do: Callable[..., None]


_COMMANDS: dict[str, _Command] = {}


def _command(usage: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    def register(do: Callable[..., None]) -> Callable[..., None]:
        _COMMANDS[usage.split(maxsplit=1)[0]] = _Command(usage, do)
        return do

    return register


def _execute(world: ScriptedWorld, line: str) -> None:
    try:
        word, *arguments = shlex.split(line)
    except ValueError as error:
        raise ScriptError(f"{error}: {line}") from None
    if word not in _COMMANDS:
        raise ScriptError(f"unknown command '{word}'; known: {', '.join(sorted(_COMMANDS))}")
    command = _COMMANDS[word]
    try:
        inspect.signature(command.do).bind(world, *arguments)
    except TypeError:
        raise _usage(word) from None
    world.now_ms += _COMMAND_MS
    command.do(world, *arguments)


def _usage(word: str) -> ScriptError:
    return ScriptError(f"usage: {_COMMANDS[word].usage}")


@_command("sites NAME...")
def _sites(world: ScriptedWorld, *names: str) -> None:
    for name in names:
        if name in world.nodes:
            raise ScriptError(f"there is a site '{name}' already")
        world.add_site(name)


@_command("matrix NAME BEFORE AFTER RESULT [both-when-concurrent]")
def _matrix(world: ScriptedWorld, name: str, *words: str) -> None:
    """One entry; more lines with the same name add more."""
    match words:
        case (before, after, result, *option) if option in ([], ["both-when-concurrent"]):
            entry = Entry(before, after, result_named(result), bool(option))
        case _:
            raise _usage("matrix")
    entries = world.matrices[name].entries if name in world.matrices else ()
    world.matrices[name] = Matrix((*entries, entry))


@_command("resource NAME APP at SITE... [with plain | parallel | matrix NAME ...]")
def _resource(world: ScriptedWorld, name: str, app_name: str, at: str, *rest: str) -> None:
    if at != "at":
        raise _usage("resource")
    sites, options = _split(rest, "with")
    app = _one_of(APPLICATIONS, app_name, "application")
    matrix, flags = app.matrix, set(options)
    if "matrix" in options[:-1]:
        matrix_name = options[options.index("matrix") + 1]
        matrix = _one_of(world.matrices, matrix_name, "matrix")
        flags -= {"matrix", matrix_name}
    if unknown := flags - {"plain", "parallel"}:
        raise ScriptError(f"unknown option '{min(unknown)}'; known: plain, parallel, matrix NAME")
    resource = Resource(name, app, tuple(_site(world, site) for site in sites), matrix)
    world.declare(resource, plain="plain" in flags, parallel="parallel" in flags)


@_command('submit SITE RESOURCE TYPE "COMMAND" [force | delete] [matrix NAME]')
def _submit(world: ScriptedWorld, site: str, name: str, type_: str, line: str, *options: str) -> None:
    kind, matrix = Kind.NORMAL, None
    match options:
        case ():
            pass
        case ("force" | "delete",):
            kind = Kind(options[0])
        case ("matrix", matrix_name):
            matrix = _one_of(world.matrices, matrix_name, "matrix")
        case _:
            raise _usage("submit")
    _submit_as_client(world, site, Submitted("", name, type_, Command(line), kind, matrix=matrix))


@_command("move SITE RESOURCE to SITE...")
def _move(world: ScriptedWorld, site: str, name: str, to: str, *sites: str) -> None:
    if to != "to" or not sites:
        raise _usage("move")
    resource = _one_of(world.resources, name, "resource")
    named = tuple(_site(world, other) for other in sites)
    _submit_as_client(world, site, Submitted("", name, "sites", Command(""), Kind.SITES, sites=named))
    resource.sites = named


def _submit_as_client(world: ScriptedWorld, site: str, request: Submitted) -> None:
    """Submit an operation as a client does: with sites and matrix if the site does not know the resource yet."""
    resource = _one_of(world.resources, request.resource, "resource")
    _running(world, site)
    new = not world.is_known(site, resource.name)
    event = Submitted(
        f"request at {world.now_ms}",
        resource.name,
        request.type,
        request.payload,
        request.kind,
        resource.name,
        request.sites or (resource.sites if new else None),
        request.matrix or (resource.matrix if new else None),
    )
    world.take(site, event)


@_command("partition SITE... | SITE... [| ...]")
def _partition(world: ScriptedWorld, *words: str) -> None:
    side, sides = 0, {}
    for word in words:
        if word == "|":
            side += 1
        else:
            sides[_site(world, word)] = side
    if missing := set(world.nodes) - set(sides):
        raise ScriptError(f"say on which side {', '.join(sorted(missing))} is to be")
    across = {(a, b) for a in sides for b in sides if sides[a] != sides[b]}
    world.set_cut(world.cut | across)


@_command("cut SITE -> SITE, or cut SITE <-> SITE")
def _cut(world: ScriptedWorld, one: str, arrow: str, other: str) -> None:
    if arrow not in ("->", "<->"):
        raise _usage("cut")
    link = (_site(world, one), _site(world, other))
    world.set_cut(world.cut | ({link, link[::-1]} if arrow == "<->" else {link}))


@_command("heal")
def _heal(world: ScriptedWorld) -> None:
    world.set_cut(set())


# -- messages ------------------------------------------------------------------------------------------


@_command("deliver [FROM TO]")
def _deliver(world: ScriptedWorld, sender: str = "", peer: str = "") -> None:
    if not sender:
        world.settle(lambda flight: _print_if_new(world, flight))
        return
    if not peer:
        raise _usage("deliver")
    flight = _first(world, sender, peer)
    world.output.append(str(flight))
    world.deliver(flight)


def _print_if_new(world: ScriptedWorld, flight: Flight) -> None:
    """Acknowledgements, repetitions and replies are many, and a reply shows as an answer anyway."""
    if world.is_news(flight):
        world.output.append(str(flight))


@_command("drop FROM TO")
def _drop(world: ScriptedWorld, sender: str, peer: str) -> None:
    flight = _first(world, sender, peer)
    world.output.append(f"lost: {flight}")
    world.flights.remove(flight)


@_command("duplicate FROM TO")
def _duplicate(world: ScriptedWorld, sender: str, peer: str) -> None:
    flight = _first(world, sender, peer)
    world.output.append(f"twice: {flight}")
    world.flights.insert(world.flights.index(flight), flight)


@_command("delay FROM TO")
def _delay(world: ScriptedWorld, sender: str, peer: str) -> None:
    flight = _first(world, sender, peer)
    world.output.append(f"later: {flight}")
    world.flights.remove(flight)
    world.flights.append(flight)


@_command("messages")
def _messages(world: ScriptedWorld) -> None:
    world.output += map(str, world.flights)


def _first(world: ScriptedWorld, sender: str, peer: str) -> Flight:
    link = (_site(world, sender), _site(world, peer))
    for flight in world.flights:
        if (flight.sender, flight.peer) == link:
            return flight
    raise ScriptError(f"nothing is on its way from {sender} to {peer}")


# -- sites, applications, time -------------------------------------------------------------------------


@_command("crash SITE [after run]")
def _crash(world: ScriptedWorld, site: str, after: str = "", run: str = "") -> None:
    held = world.benches[_running(world, site)].held
    if after and (after, run) != ("after", "run"):
        raise _usage("crash")
    if after and not held:
        raise ScriptError(f"{site} runs nothing; pause it first")
    for one in held if after else ():
        world.execute(site, one)
    world.crash(site)


@_command("restart SITE")
def _restart(world: ScriptedWorld, site: str) -> None:
    if world.nodes[_site(world, site)].site is not None:
        raise ScriptError(f"{site} is running; crash it first")
    world.restart(site)


@_command("lose-disk SITE")
def _lose_disk(world: ScriptedWorld, site: str) -> None:
    world.lose_disk(_running(world, site))


@_command("pause SITE")
def _pause(world: ScriptedWorld, site: str) -> None:
    world.benches[_running(world, site)].paused = True


@_command("resume SITE")
def _resume(world: ScriptedWorld, site: str) -> None:
    world.resume(_running(world, site))


@_command("refuse SITE TIMES")
def _refuse(world: ScriptedWorld, site: str, times: str) -> None:
    world.benches[_running(world, site)].trouble.extend([Trouble.REFUSED] * _number(times))


@_command("timeout SITE [before | after]")
def _timeout(world: ScriptedWorld, site: str, when: str = "after") -> None:
    kinds = {"before": Trouble.TIMEOUT_BEFORE, "after": Trouble.TIMEOUT_AFTER}
    world.benches[_running(world, site)].trouble.append(_one_of(kinds, when, "moment"))


@_command("resolve SITE RESOURCE OPERATION happened | did-not-happen")
def _resolve(world: ScriptedWorld, site: str, name: str, operation: str, what: str) -> None:
    happened = _one_of({"happened": True, "did-not-happen": False}, what, "outcome")
    origin, _, seq = operation.rpartition(":")
    id_ = OpId(Origin(_site(world, origin), world.nodes[origin].origin.incarnation), _number(seq))
    _one_of(world.resources, name, "resource")
    world.take(_running(world, site), Resolved(name, id_, happened))


@_command("retry SITE RESOURCE")
def _retry(world: ScriptedWorld, site: str, name: str) -> None:
    _one_of(world.resources, name, "resource")
    world.take(_running(world, site), Retried(name))


@_command("clock SITE MILLISECONDS")
def _clock(world: ScriptedWorld, site: str, by_ms: str) -> None:
    world.nodes[_site(world, site)].skew_ms += _number(by_ms)


@_command("tick [MILLISECONDS]")
def _tick(world: ScriptedWorld, duration_ms: str = "100") -> None:
    world.pass_time(_number(duration_ms))


# -- looking -------------------------------------------------------------------------------------------


@_command("log RESOURCE")
def _log(world: ScriptedWorld, name: str) -> None:
    _one_of(world.resources, name, "resource")
    for lines, sites in group_sites({site: _log_lines(world, site, name) for site in world.nodes}):
        world.output.append(f"at {sites}")
        world.output += (f"  {line}" for line in lines)


def _log_lines(world: ScriptedWorld, site: str, name: str) -> tuple[str, ...]:
    if world.nodes[site].site is None:
        return ("(down)",)
    replica = world.replica(site, name)
    return (replica and tuple(describe_log(replica))) or ("nothing",)


@_command("state RESOURCE")
def _state(world: ScriptedWorld, name: str) -> None:
    resource = _one_of(world.resources, name, "resource")
    states = {
        site: describe_state(node.states.get(name, resource.app.start))
        for site, node in world.nodes.items()
        if name in node.states or site in resource.sites
    }
    world.output += (f"{sites}: {state}" for state, sites in group_sites(states))


# -- words ---------------------------------------------------------------------------------------------


def _one_of(known: Mapping[str, T], name: str, what: str) -> T:
    if name not in known:
        raise ScriptError(f"unknown {what} '{name}'; known: {', '.join(sorted(known)) or 'none'}")
    return known[name]


def _site(world: ScriptedWorld, name: str) -> str:
    _one_of(world.nodes, name, "site")
    return name


def _running(world: ScriptedWorld, name: str) -> str:
    if world.nodes[_site(world, name)].site is None:
        raise ScriptError(f"{name} is down; restart it first")
    return name


def _number(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise ScriptError(f"'{text}' is not a whole number") from None


def _split(words: tuple[str, ...], at: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    place = words.index(at) if at in words else len(words)
    return words[:place], words[place + 1 :]

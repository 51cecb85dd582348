"""The story of `cheops demo`: together, apart, at odds, together again, who won and why, a stock of shoes;
and an application that is asked by HTTP (demo_cloud.py).
"""

from cheops.cli.demo_cloud import replicate, share
from cheops.cli.demo_stage import Stage
from cheops.demo.answers import log_of
from cheops.demo.sites import NAMES

_NOTE = ("note", "show", "shopping")
_COUNTER = ("redis-cli", "get", "counter")
_STOCK = ("stock", "show", "shoes")
_TWO = NAMES[:2]
_EVERYWHERE = ("--sites", " & ".join(NAMES))
_AT_ONCE = ("--wait", "first")


def play_story(stage: Stage) -> None:
    for act in (_together, _cut, _heal, _why, _stock, share, replicate):
        act(stage)
        stage.pause()


def _together(stage: Stage) -> None:
    stage.act("One after the other")
    stage.say("A shopping list: a plain file at each site. It is begun at site1, and goes on at the others.")
    new = (*_EVERYWHERE, "--resource-type", "note")
    stage.exec("site1", "shopping", "set", "note set shopping bread", *new)
    stage.exec("site2", "shopping", "add", "note add shopping milk")
    stage.exec("site3", "shopping", "add", "note add shopping eggs")
    _all_have(stage, "bread, milk and eggs", *_NOTE, expected="bread\nmilk\neggs")
    if stage.sites.redis_server:
        stage.pause()
        stage.say("A counter, in the Redis of each site. No Redis knows of another.")
        new = (*_EVERYWHERE, "--resource-type", "counter")
        stage.exec("site1", "counter", "set", "redis-cli set counter 0", *new)
        stage.exec("site2", "counter", "inc", "redis-cli incrby counter 7")
        _all_have(stage, "7", *_COUNTER, expected="7")


def _cut(stage: Stage) -> None:
    stage.act("The network is cut, and everybody goes on")
    stage.cut()
    stage.say("No site reaches another one now. Each takes what its users want, at once:")
    stage.exec("site1", "shopping", "add", "note add shopping butter", *_AT_ONCE)
    stage.exec("site2", "shopping", "set", "note set shopping pizza", *_AT_ONCE)
    stage.exec("site3", "shopping", "add", "note add shopping salt", *_AT_ONCE)
    if stage.sites.redis_server:
        stage.pause()
        stage.exec("site1", "counter", "set", "redis-cli set counter 29", *_AT_ONCE)
        stage.exec("site2", "counter", "inc", "redis-cli incrby counter 13", *_AT_ONCE)
        stage.exec("site3", "counter", "inc", "redis-cli incrby counter -12", *_AT_ONCE)
    stage.say("So the sites differ now. What the applications themselves say:")
    stage.compare(*_columns(stage))
    old = "bread\nmilk\neggs"
    lists = (f"{old}\nbutter", "pizza", f"{old}\nsalt")
    stage.shows("three lists, as each site's users made them", *_NOTE, at=NAMES, expected=lists)
    if stage.sites.redis_server:
        stage.shows("three numbers: 29, 20, -5", *_COUNTER, at=NAMES, expected=("29", "20", "-5"))


def _heal(stage: Stage) -> None:
    stage.act("The network is back")
    stage.heal()
    stage.say("The sites exchange what they missed, and each merges it by itself, by the same rules.")
    stage.run("site1", "wait", "shopping", "--for=converged")
    if stage.sites.redis_server:
        stage.run("site1", "wait", "counter", "--for=converged")
    stage.compare(*_columns(stage))
    _all_have(stage, "pizza", *_NOTE, expected="pizza")
    if stage.sites.redis_server:
        _all_have(stage, "29", *_COUNTER, expected="29")


def _why(stage: Stage) -> None:
    stage.act("Who won, and why")
    stage.say("The type says how two changes combine: a set replaces adds, also those made at the same time.")
    stage.run("site3", "explain", "shopping")
    _beaten(stage, "shopping", ("site1:2", "site3:2"), by="site2:2")
    if stage.sites.redis_server:
        stage.pause()
        stage.say("The same for the counter, as a log with a lane for each site:")
        stage.run("site3", "log", "counter")
        _beaten(stage, "counter", ("site2:2", "site3:1"), by="site1:2")


def _stock(stage: Stage) -> None:
    stage.act("A stock that never falls below zero")
    stage.say("100 pairs of shoes. While the network is cut, 50 are sold at site1 and 51 at site2.")
    new = ("--sites", " & ".join(_TWO), "--resource-type", "stock")
    stage.exec("site1", "shoes", "set", "stock set shoes 100", *new)
    stage.cut()
    stage.exec("site1", "shoes", "take", "stock take shoes 50", *_AT_ONCE)
    stage.exec("site2", "shoes", "take", "stock take shoes 51", *_AT_ONCE)
    stage.shows("50 left at site1, 49 at site2", *_STOCK, at=_TWO, expected=("50", "49"))
    stage.pause()
    stage.heal()
    stage.say("Now site1 refuses the 51 as a whole and site2 the 50. The type says: then one by one.")
    stage.run("site1", "wait", "shoes", "--for=converged")
    stage.shows("0 at both sites", *_STOCK, at=_TWO, expected=("0", "0"))
    stage.say("One pair was sold that is not there. That cannot be undone, but it is not hidden either:")
    stage.run("site1", "describe", "operation", "shoes", "site2:1")
    _refused(stage)


# -- what is checked -------------------------------------------------------------------------------------


def _columns(stage: Stage) -> list[tuple[str, tuple[str, ...]]]:
    columns: list[tuple[str, tuple[str, ...]]] = [("SHOPPING (a file)", _NOTE)]
    return [*columns, ("COUNTER (Redis)", _COUNTER)] if stage.sites.redis_server else columns


def _all_have(stage: Stage, what: str, *command: str, expected: str) -> None:
    stage.shows(f"{what} at every site", *command, at=NAMES, expected=(expected,) * len(NAMES))


def _beaten(stage: Stage, id_: str, losers: tuple[str, ...], by: str) -> None:
    """Every site gives the same reason."""
    rule = 4  # replace wins over concurrent

    def reasons() -> list[dict[str, tuple[str | None, int | None]]]:
        logs = [log_of(stage.sites.urls[site], id_) for site in NAMES]
        return [{op["id"]: (op["beaten_by"], op["rule"]) for op in log} for log in logs]

    def is_so() -> bool:
        return all(found.get(loser) == (by, rule) for found in reasons() for loser in losers)

    what = f"every site says so: {by} beats {' and '.join(losers)}, by rule {rule}"
    stage.expect(what, is_so, lambda: str(reasons()))


def _refused(stage: Stage) -> None:
    """Both sites know which units were refused, and where."""
    expected = {
        ("site1:2", "site2"): "applied 49 units; unit 50 was refused:",
        ("site2:1", "site1"): "applied 50 units; unit 51 was refused:",
    }

    def told() -> list[dict[tuple[str, str], str]]:
        logs = [log_of(stage.sites.urls[site], "shoes") for site in _TWO]
        return [{(op["id"], r["site"]): r["detail"] for op in log for r in op["replies"]} for log in logs]

    def is_so() -> bool:
        return all(found.get(key, "").startswith(text) for found in told() for key, text in expected.items())

    stage.expect("both sites know which pair was refused, and where", is_so, lambda: str(told()))

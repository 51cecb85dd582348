"""What holds for all tests: they are repeatable, and where CI runs them, none is skipped."""

import contextlib
import os
import signal
from importlib import import_module
from itertools import islice
from pathlib import Path

import pytest
from hypothesis import settings

# Repeatable: the same examples on every run, and no time limit that a busy machine could miss.
settings.register_profile("repeatable", derandomize=True, deadline=None, max_examples=200)
settings.register_profile("search", deadline=None, max_examples=20_000)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "repeatable"))


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--update-transcripts",
        action="store_true",
        help="write what the commands print now into the transcripts; review the change as a diff",
    )
    parser.addoption(
        "--update-reference",
        action="store_true",
        help="write settings and endpoints as they are declared now into docs/configuration.md and docs/api.md",
    )
    parser.addoption(
        "--repetitions",
        type=int,
        default=2,
        help="of each of the report's experiments; make soak asks for 20",
    )


@pytest.fixture
def repetitions(request: pytest.FixtureRequest) -> int:
    times: int = request.config.getoption("--repetitions")
    return times


def pytest_sessionstart(session: pytest.Session) -> None:
    """Each process of a whole run imports its share of the test modules before it collects all of them.

    Pytest rewrites the `assert` of a module when it is first imported, which takes most of the time of a collection, and
    keeps the result in __pycache__. After a checkout all processes would do that for all modules, in the same order.
    """
    run = getattr(session.config, "workerinput", {"mainargv": []})
    if "worksteal" in run["mainargv"]:
        folder = Path(__file__).parent
        own = sorted(folder.rglob("test_*.py"))[int(run["workerid"].removeprefix("gw")) :: run["workercount"]]
        for path in own:
            if "apps" not in path.parts:  # which are run by themselves
                with contextlib.suppress(Exception, pytest.skip.Exception):  # the collection reports it
                    import_module(".".join(path.relative_to(folder.parent).with_suffix("").parts))


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """What may take longest goes first: as one of the last, it would run while the other processes have nothing to do.

    With `--dist worksteal` each process begins with one part of the list, so each part gets its share of the long ones.
    The rest keeps its order: tests of one module share their agents, which every process starts for itself.
    """
    items.sort(key=_may_take_s, reverse=True)
    run = getattr(config, "workerinput", {"mainargv": [], "workercount": 1})  # by xdist, in each of its processes
    if "worksteal" in run["mainargv"]:
        long = [item for item in items if _may_take_s(item)]
        processes = run["workercount"]
        size = -(-len(items) // processes)
        rest = iter(items[len(long) :])
        parts = ([*(own := long[n::processes]), *islice(rest, size - len(own))] for n in range(processes))
        items[:] = [item for part in parts for item in part]


def _may_take_s(item: pytest.Item) -> float:
    marker = item.get_closest_marker("timeout")
    return marker.args[0] if marker else 0.0


def pytest_configure(config: pytest.Config) -> None:
    # A shell starts background jobs (`make test &`) with SIGINT ignored, and every child inherits that. Tests that
    # end a child with Ctrl-C would wait for ever, so these tests give their children the default back.
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if os.environ.get("CI") and not hasattr(config, "workerinput"):  # once, not in each xdist worker
        config.pluginmanager.register(NoSkips(), "no-skips")


class NoSkips:
    """In CI a skipped test is a failure: what a machine lacks must be installed, not passed over."""

    def __init__(self) -> None:
        self.skipped: list[str] = []

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.skipped and not hasattr(report, "wasxfail"):
            self.skipped.append(report.nodeid)

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if self.skipped and session.exitstatus == 0:
            session.exitstatus = 1

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        if self.skipped:
            terminalreporter.write_line(f"skipped, which CI does not accept: {', '.join(self.skipped)}", red=True)

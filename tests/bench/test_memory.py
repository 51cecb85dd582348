"""The bench of memory counts all processes of a site, each in its role."""

import os
import subprocess
import sys

from bench.memory import AGENT, HAPROXY, HELPERS, Process, processes, row
from tests.agent.rig import until


def test_a_process_and_what_has_come_from_it_are_counted() -> None:
    code = "import subprocess, sys; subprocess.run([sys.executable, '-c', 'input()'])"
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE) as parent:
        found = until(lambda: len(all_ := processes(parent.pid)) == 2 and all_)
        parent.communicate()
    assert [one.role for one in found] == [AGENT, HELPERS]
    assert all(0 < one.pss_bytes <= one.rss_bytes for one in found)


def test_a_process_that_has_ended_is_none() -> None:
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    assert processes(ended.pid) == []
    assert processes(os.getpid())


def test_the_target_is_for_a_site_at_rest() -> None:
    found = [Process(AGENT, 60_000_000, 40_000_000), *[Process(HAPROXY, 9_000_000, 4_000_000)] * 2]
    busy = row("right after 1,000 resources", found)
    assert busy == ("right after 1,000 resources", "3", "78.0 MB", "48.0 MB", "40.0 MB", "0.0 MB", "8.0 MB", "")
    assert row("fresh, at rest", found)[-1] == "≤ 60 MB"

"""The agent: how fast operations are at one site and at three, near and far, with few resources and many."""

from collections.abc import Iterator

from bench.crowd import crowd_section
from bench.exec import latency_section, throughput_section
from bench.growth import growth_sections
from bench.propagation import propagation_section
from bench.report import Section
from bench.submit import submit_section


def run() -> Iterator[Section]:
    """One section after the other, so that each is written as soon as it is measured."""
    yield latency_section()
    yield submit_section()
    yield throughput_section()
    yield propagation_section()
    yield from growth_sections()
    yield crowd_section()

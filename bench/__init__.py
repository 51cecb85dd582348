"""Benchmarks: `make bench` measures and writes docs/benchmarks.md.

Numbers are medians. A claim is a ratio to a reference that is measured in the same run, because seconds differ from
machine to machine.
"""

"""Benchmarks: `make bench` measures and writes docs/benchmarks.md. Numbers are medians; a claim is a ratio
against a reference measured in the same run, since seconds differ from machine to machine."""

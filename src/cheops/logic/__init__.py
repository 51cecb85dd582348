"""Logic for operations that the order alone does not combine well: built in is `text`, which merges edits of one text.

A logic is a function: it gets the effective operations after the last base, in the canonical order, and returns the
commands that a site runs instead of them (see `Logic` in cheops.engine.settings). It must be pure: every site calls it
with the same operations, and all must get the same commands.

    edit       an edit of a text as data: how it is written in a command, applied, computed and moved over another one
    text       the logic `text`: concurrent edits become one, by a CRDT (Loro)
    program    `cheops-text`, the program that keeps a text in a file at a site

`edit` and `program` need nothing but the standard library: a site starts the program for every edit.
"""

"""Where the documents of a site are stored: in a SQLite file, or in memory.

    interface  the `Store` protocol and its errors
    sqlite     the store of an agent; `database` is its file: lock, connections, tables
    memory     a store for tests
    batch      what one commit writes, encoded and signed before anything is touched
    codec      documents, messages and keys as bytes and text
    files      files that came with operations, by content hash

What comes in are `Save` effects of the engine: documents to write, keys to forget. What goes out are documents, and
*feeds*: the shared documents in the order in which they were first stored, all of them or those of one site.

    store = SQLiteStore("/var/lib/cheops/site.db", "site1")
    last_seq = store.commit([Save((operation,)), Save((reply,), (key_of(started),))])
    store.load("counter")                      # every document of a resource
    store.changes(since=0, limit=100)          # the feed: (seq, key) of what is shared

**Durability.** `commit` is all or nothing, and what it was given survives kill -9 and power loss when it returns. An
agent acts on an effect (runs a command, sends a message, answers a client) only after the commit of the saves that
came before it.

**Group commit.** A commit costs one sync of the disk, whatever is in it. So the agent collects the saves of all events
that arrive during one commit, and gives them to the next one together, in their order.

**One acceptance suite.** tests/store holds for every implementation; a new store is done when it passes.

The package may import the engine's and the log's types, and `security.signatures`; nothing here knows about networks.
"""

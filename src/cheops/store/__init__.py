"""Where the documents of a site are stored: in a SQLite file, or in memory.

    interface  the `Store` protocol and its errors
    sqlite     the store of an agent; `database` is its file: lock, connections, tables
    memory     a store for tests
    batch      what one commit writes, encoded and signed before anything is touched
    codec      documents, messages and keys as bytes and text
    files      the files of operations, by the hash of their content
    room       space on the disk, reserved for files that are being received

What comes in are `Save` effects of the engine: documents to write, keys to forget. What goes out are documents, and
*feeds*: the shared documents in the order in which they were first stored, all of them or those of one site.

    store = SQLiteStore("/var/lib/cheops/site.db", "site1")
    last_seq = store.commit([Save((operation,)), Save((reply,), (key_of(started),))])
    store.load("counter")                      # every document of a resource
    store.changes(since=0, limit=100)          # the feed: (seq, key) of what is shared

**Durability.** `commit` is all or nothing. When it returns, its documents survive kill -9 and power loss. An
agent acts on an effect (runs a command, sends a message, answers a client) only after the commit of the saves that
came before it.

**Group commit.** A commit costs one sync of the disk, however many documents it has. So the agent collects the saves of
all events that arrive during one commit, and writes them in the next one together, in their order.

**One acceptance suite.** Every implementation must pass tests/store.

The package may import the engine's and the log's types, and `security.signatures`. It does no network I/O.
"""

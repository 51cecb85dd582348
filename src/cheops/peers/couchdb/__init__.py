"""CouchDB's replication protocol, both ends: a server that CouchDB and PouchDB replicate with, and a replicator.

    server      the HTTP routes; `changes` is its `_changes` feed, `requests` reads bodies and writes errors
    database    a site's shared documents as CouchDB databases: everything, and what involves one site
    documents   one document with its id and its revision
    client      the requests to a remote database
    replicator  push and pull between one of our databases and a remote one, with checkpoints

What comes in are shared documents (operations with a verdict, replies, matrices) and the `_local` notes of
replicators. Each document is checked by itself, and new ones go to the engine through `accept`; one that is refused
does not stop the others. What goes out is the feed of the store. Documents are immutable: the only way to write one is
`_bulk_docs` with `new_edits=false`, and its revision must follow from its content.

    databases = Databases(store, executor, accept)
    app.routes.extend(couch_routes(databases))                    # the server
    databases.committed(store.commit(saves))                      # wakes the clients that wait for changes

    replicator = Replicator(databases.named("cheops-for-site2"), url, session, Random(), report)
    await replicator.push_forever()                               # until it is cancelled

The server runs in every agent. The replicator has no setting yet: it will carry `sync: couchdb`, where sites exchange
documents through a CouchDB instead of directly.

The package may import the store, the engine's and the log's types, and `peers.client`; it knows nothing about the mesh,
rights or signatures. The agent decides which clients may use the routes, and `accept` what it believes.
"""

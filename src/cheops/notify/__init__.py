"""Notifications: events from what a site commits and decides, journalled in order, reported to targets and followers.

    store commit -> follower --+
                               +--> journal --> feed --> streams of the API
    engine, mesh -> observer --+                  +----> delivery --> web hook, command or mail

`derivation` turns documents and notices into events; it is pure. The journal is a SQLite file beside the store, and
each event enters it exactly once: the follower notes how far it has read the store's feed in the transaction that adds
the events. A delivery notes how far its target has got, so a restart continues there: a target gets each event at least
once, in order, and knows a repetition by the event's `id`. `summaries` reports an operation once every site has
finished it.

    notifier = Notifier(config, runner)
    store = notifier.journal_commits(store)    # from now on each commit is journalled
    await notifier.start(pump, in_store_thread)
    page = await notifier.feed.read(notifier.feed.end, wait_s=30)

This package imports the engine and the store, and runs commands by `backends.command`; it knows no other site.
"""

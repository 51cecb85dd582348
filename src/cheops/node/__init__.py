"""One site at work: the engine with its store, its backend and its peers. Everything that waits is here."""

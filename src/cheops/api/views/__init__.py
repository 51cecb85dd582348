"""Views: what a site knows, in the models of the API.

Pure functions from a replica of the engine (and the names of the sites that are up, and the time) to a model. They
neither wait nor read the store, so tests call them with a replica from a simulated world:

    resource_status(replica, up={"site1", "site2"}, now_ms=wall_ms()).sentence

`operations` has what the others share: the fate of an operation, its state at a site, and how names and times are
written. The words for people (`status`, `explanation`, `dry_run`) are part of the API: the command line and the web
interface show them as they are.
"""

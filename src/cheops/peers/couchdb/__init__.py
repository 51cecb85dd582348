"""CouchDB's replication protocol, both ends: client and server."""

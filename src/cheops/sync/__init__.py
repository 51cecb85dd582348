"""Between sites: CouchDB's replication protocol, both ends, and heartbeats."""

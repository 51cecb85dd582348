"""Between sites: who is there (the mesh), messages of the engines (links), and CouchDB's replication protocol."""

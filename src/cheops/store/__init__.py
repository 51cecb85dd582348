"""Where the documents of a site are kept: SQLite, or memory."""

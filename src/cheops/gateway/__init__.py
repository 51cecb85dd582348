"""HTTP in and out: the application's services, each behind an address that reads scopes."""

"""Rules for well-known APIs, in the form in which users write them; see cheops.config.service_rules."""

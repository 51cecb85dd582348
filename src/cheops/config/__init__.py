"""The configuration file of a site: what it may contain, how it is read, and where each setting is declared.

In comes a YAML file, out comes one frozen `SiteConfig` with all defaults filled in and all paths absolute:

    config = read_site(Path("site.yaml"))       # raises YamlFileError: "site.yaml:3: listen: expected host:port, …"
    config.gateway.connect_timeout_s            # 3.0
    config.types["counter"].command.allow       # ("redis-cli incrby * *",)
    config.warnings                             # what is valid, but probably a mistake

The package reads files and starts nothing. It may import the pure core (scope, log, engine), yaml_file, matrix_file and
plugins; everything above it, from security to the command line, may import it.

    settings    how a setting is declared (`setting`, `Section`) and a section is read
    values      the types of values: duration, size, path, name, URL, count, choice
    address     hosts, ports and URLs in one spelling
    site        the root of the file, peers, limits, heartbeat; rules about several sections
    security    `security` and `clients`; which addresses need certificates
    gateway     `gateway`, and where it listens for each service
    services    `services`: HTTP services and their replication
    types       `types`: resource types, checkpoints, policy
    command     how the commands of a type run: patterns, limits, steps
    notify      `notify`: kinds of events, and their receivers
    template    the file that `cheops init` writes

To add a setting, declare a field in the dataclass of its section, with the limits of its value:

    connect_timeout_s: float = setting(DURATION, 3.0, "How long a connection to a service may take.")
    retries: int = setting(count(0, 10), 3, "How often a request is repeated.")
    pause_s: float = setting(duration(0.1, 60.0), 1.0, "How long to wait before a request is repeated.")

The key is the field's name without its unit (`connect_timeout`). From the declaration follow the reader with its
complaints (unknown key, wrong type, out of range), `cheops config check`, and the table of docs/configuration.md, which
`pytest tests/config/test_documentation.py --update-reference` rewrites. A rule about several settings of a section, or
a default that depends on another setting, goes into the section's method `complete`.

Nothing else has to be edited, with three exceptions: the settings of `limits` are declared in engine/settings.py; the
text that `cheops config check` prints is a selection (`_show_config` in cli/config.py, add a row there if operators
should see the value); and so is the file that `cheops init` writes (template.py).
"""

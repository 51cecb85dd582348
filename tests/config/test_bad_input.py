"""Every mistake is refused with file, line, place and remedy."""

from pathlib import Path

import pytest

from cheops.config.site import read_site
from cheops.yaml_file import YamlFileError

BAD = [
    ("", "1: the file is empty"),
    ("listen: 127.0.0.1:1", "1: 'site' is missing"),
    ("site: ''", "1: site: a name cannot be empty"),
    ('site: "a\\u200b"', "1: site: a name cannot hold the invisible character U+200B"),
    ("site: [a]", "1: site: expected a text, found a list"),
    (
        "site: a\npears: {}",
        (
            "2: pears: unknown key; did you mean 'peers'? "
            "Known here: advertise, clients, data, demo, gateway, heartbeat, limits, listen, notify, peers, security, services and 2 more"
        ),
    ),
    # where it listens
    (
        "site: a\nlisten: 8079",
        "2: listen: expected host:port, such as 127.0.0.1:8079 or [::1]:8079, found '8079'",
    ),
    (
        "site: a\nlisten: ::1:8079",
        "2: listen: expected host:port, such as 127.0.0.1:8079 or [::1]:8079, found '::1:8079'",
    ),
    (
        "site: a\nlisten: ':8079'",
        "2: listen: the host is missing; for all addresses of the machine write 0.0.0.0:8079",
    ),
    ("site: a\nlisten: host:0", "2: listen: a port is a number from 1 to 65535, not 0"),
    ("site: a\nlisten: host:65536", "2: listen: a port is a number from 1 to 65535, not 65536"),
    ("site: a\nlisten: 300.0.0.1:1", "2: listen: '300.0.0.1' is neither a host name nor an IP address"),
    ("site: a\nlisten: '[fe80]:1'", "2: listen: '[fe80]' is neither a host name nor an IP address"),
    ("site: a\nlisten: a b:1", "2: listen: 'a b' is neither a host name nor an IP address"),
    # URLs
    (
        "site: a\nadvertise: 10.0.0.1:80",
        (
            "2: advertise: expected a URL that starts with http:// or https://, found '10.0.0.1:80'; "
            "write http://10.0.0.1:80"
        ),
    ),
    (
        "site: a\nadvertise: ftp://a",
        (
            "2: advertise: expected a URL that starts with http:// or https://, found 'ftp://a'; "
            "such as http://10.0.0.2:8079"
        ),
    ),
    ("site: a\nadvertise: http://a/b", "2: advertise: the URL of an agent has no path: 'http://a/b'"),
    (
        "site: a\nadvertise: http://me:secret@a",
        "2: advertise: a URL must not contain a user name or password",
    ),
    (
        "site: a\nadvertise: http://a?",
        "2: advertise: a URL must not have a query (?) or a fragment (#) here: 'http://a?'",
    ),
    (
        "site: a\nadvertise: http://a b",
        "2: advertise: a URL cannot contain blanks or invisible characters: 'http://a b'",
    ),
    (
        "site: a\nadvertise: http://0.0.0.0:1",
        "2: advertise: a URL needs one address, and 0.0.0.0 means all of a machine: 'http://0.0.0.0:1'",
    ),
    (
        "site: a\nadvertise: http://a:99999",
        "2: advertise: 'http://a:99999' is not a URL: Port out of range 0-65535",
    ),
    ("site: a\nadvertise: http://:80", "2: advertise: '' is neither a host name nor an IP address"),
    # peers
    (
        "site: a\nlisten: 0.0.0.0:1\npeers: {b: http://b}",
        (
            "1: 'advertise' is missing: 0.0.0.0:1 is all addresses of this machine, and peers need one, "
            "such as advertise: http://10.0.0.1:1"
        ),
    ),
    ("site: a\npeers:", "2: peers: expected names with values, found nothing"),
    ("site: a\npeers: [b]", "2: peers: expected names with values, found a list"),
    ("site: a\npeers:\n  '': http://b", "3: peers.: a name cannot be empty"),
    ("site: a\npeers:\n  b: {}", "3: peers.b: expected a text, found names with values"),
    (
        "site: a\nlisten: 10.0.0.1:1\npeers:\n  a: http://10.0.0.9:1",
        (
            "4: peers.a: this site itself is at http://10.0.0.1:1 (by 'advertise' or 'listen'), "
            "not at http://10.0.0.9:1; write the same in both places"
        ),
    ),
    (
        "site: a\npeers:\n  b: http://b\n  c: http://B:80/",
        "4: peers.c: http://b is the address of 'b' already; each site has its own",
    ),
    (
        "site: a\npeers:\n  b: http://127.0.0.1:8079",
        "3: peers.b: http://127.0.0.1:8079 is the address of 'a' already; each site has its own",
    ),
    # services
    ("site: a\nservices:\n  image: {}", "3: services.image: 'url' is missing"),
    (
        "site: a\nservices:\n  image: {uri: http://b}",
        (
            "3: services.image.uri: unknown key; did you mean 'url'? Known here: add_carrier, advertise, allow, auth, "
            "ca, carriers, client, client_cert, client_key, credential_headers, errors, exists and 27 more"
        ),
    ),
    (
        "site: a\nservices:\n  image: {url: http://b, ca: x}",
        "3: services.image.ca: 'ca' is for a service with an https:// URL, and 'url' is http://b",
    ),
    (
        "site: a\nservices:\n  image: {url: https://b, client_key: x}",
        "3: services.image.client_key: 'client_cert' is missing: the gateway needs both, the certificate and its key",
    ),
    (
        "site: a\nservices:\n  image: {url: https://b, server_name: 10.0.0.1}",
        "3: services.image.server_name: expected a host name such as image.internal, found '10.0.0.1'",
    ),
    (
        "site: a\nservices:\n  image: {url: http://b, tls: {certificate: x, key: y}}",
        "3: services.image.tls: 'tls' is the certificate for 'listen', which is not set",
    ),
    (
        (
            "site: a\nsecurity: none\npeers: {b: 'http://127.0.0.1:1'}\nservices:\n"
            "  image: {url: http://127.0.0.1:2, listen: '127.0.0.1:3', tls: {certificate: x, key: y}}"
        ),
        (
            "5: services.image.tls: with 'security: none' the gateways of other sites use this address, without TLS; set "
            "'security'"
        ),
    ),
    (
        "site: a\nservices:\n  image: {url: http://b, host: a b}",
        "3: services.image.host: expected client, service, or a host name such as s3.example.org:9000, found 'a b'",
    ),
    (
        "site: a\nservices:\n  image: {url: http://b, id: image.id}",
        ("3: services.image.id: expected where a new id is, such as $.id, $.image.id or Location, found 'image.id'"),
    ),
    (
        "site: a\nservices:\n  image: {url: http://b, exists: addopt}",
        ("3: services.image.exists: unknown value 'addopt'; did you mean 'adopt'? Known here: abort, adopt, overwrite"),
    ),
    (
        "site: a\nservices:\n  image: {url: http://b, auth: {}}",
        "3: services.image.auth: expected one of 'file', 'command' and 'folder': where lines of headers come from",
    ),
    (
        "site: a\nservices:\n  image: {url: http://b, credentials: pass}",
        (
            "3: services.image.credentials: 'credentials' is no longer a setting: 'forward: client | none' is for "
            "requests that another site serves, and 'replicate_as: own | mapped' for replicated changes; see "
            "docs/replication.md#credentials"
        ),
    ),
    (
        "site: a\nservices:\n  image: {url: http://b, replicate_as: mapped, auth: {file: x}}",
        (
            "3: services.image.replicate_as: 'mapped' needs the credentials of each client: 'auth' with 'folder' or "
            "'command'"
        ),
    ),
    (
        (
            "site: a\nservices:\n  image: {url: http://b, replicate_as: mapped, auth: {folder: x}, client: {claim: sub}, "
            "sign: {sigv4: {file: y}}}"
        ),
        "3: services.image.sign: 'sign' has one key for all clients, so it is not for 'mapped'",
    ),
    (
        "site: a\nservices:\n  image: {url: http://b, replicate_as: mapped, auth: {folder: x}}",
        "3: services.image.replicate_as: 'mapped' needs 'client': how to find out who a client is",
    ),
    (
        "site: a\nservices:\n  image: {url: http://b, auth: {folder: x}}",
        "3: services.image.auth: 'folder' has credentials by client, for 'replicate_as: mapped'",
    ),
    (
        "site: a\nservices:\n  image: {url: http://b, client: {claim: sub}}",
        "3: services.image.client: 'client' is for 'replicate_as: mapped'",
    ),
    (
        "site: a\nservices:\n  image: {url: http://b, client: {ask: http://c}}",
        "3: services.image.client.ask: expected one of 'value' and 'header': where the response names the client",
    ),
    (
        "site: a\nservices:\n  image: {url: http://b, allow: [images]}",
        (
            "3: services.image.allow[0]: expected a method and a path, such as POST /images or PUT /images/**, found "
            "'images'"
        ),
    ),
    (
        "site: a\nservices:\n  image: {url: http://b, secret: [$.]}",
        (
            "3: services.image.secret[0]: expected a member, such as $.server.adminPass or pin, or a well-known name that "
            "is not secret here, such as -password; found '$.'"
        ),
    ),
    (
        "site: a\nservices:\n  image: {url: http://b, items: {/a: /b}}",
        "3: services.image.items./a: '/b' must end with /{id}, in place of the id",
    ),
    (
        "site: a\nservices:\n  image: {url: http://b, items: {/a: '/*/{id}'}}",
        "3: services.image.items./a: it has more * than the path; each * repeats one of the path",
    ),
    (
        "site: a\nservices:\n  image: {url: http://b, pages: never}",
        "3: services.image.pages: expected none, or settings such as limit and marker, found 'never'",
    ),
    (
        "site: a\nservices:\n  image: {url: http://b, pages: {marker: m, page: p}}",
        "3: services.image.pages.page: expected one of 'marker' and 'page': how a client asks for a later page",
    ),
    (
        "site: a\nservices:\n  image: {url: http://b, pages: {limit: limit}}",
        (
            "3: services.image.pages: expected 'marker' or 'page', too: the query parameter with which a later page is "
            "asked for"
        ),
    ),
    (
        "site: a\nservices:\n  image: {url: http://b, pages: {marker: m, next: next}}",
        "3: services.image.pages.next: expected where the next page is, such as Link or $.next, found 'next'",
    ),
    (
        "site: a\nservices:\n  image: {url: http://b, refs: {image: images}}",
        "3: services.image.refs.image: expected a path, such as /images, found 'images'",
    ),
    (
        "site: a\nservices:\n  image: {url: http://b, find: images}",
        "3: services.image.find: expected a path, such as /images?name={name}, found 'images'",
    ),
    (
        "site: a\nservices:\n  image: {url: http://b, credential_headers: ['X Key']}",
        "3: services.image.credential_headers: 'X Key' is not the name of a header",
    ),
    (
        "site: a\nservices:\n  image: {url: http://b, keep_response: 2MiB}",
        "3: services.image.keep_response: expected a size from 1B to 1MiB, found '2MiB'",
    ),
    (
        (
            "site: a\nservices:\n  image:\n    url: http://b\n    matrix:\n"
            "      - {before: put, after: patch, result: take-one}"
        ),
        (
            "6: services.image.matrix: together with the built-in entries (see docs/replication.md): "
            "(put, base) take-both-keep-order contradicts the other entries, by which 'base' replaces 'put'"
        ),
    ),
    (
        "site: a\nlisten: 0.0.0.0:80\nservices:\n  image: {url: http://localhost/v2}",
        "4: services.image.url: http://localhost/v2 is this agent itself; give the address of the service",
    ),
    # data and other paths
    ("site: a\ndata: ''", "2: data: a path cannot be empty or contain the character U+0000"),
    ("site: a\ndata: ~nobody.at.all/x", "2: data: there is no such home directory: ~nobody.at.all"),
    # limits and heartbeats
    (
        "site: a\nlimits: {drafts: 0}",
        "2: limits.drafts: expected a whole number from 1 to 1,000,000, found '0'",
    ),
    (
        "site: a\nlimits: {drafts: 1s}",
        "2: limits.drafts: expected a whole number from 1 to 1,000,000, found '1s'",
    ),
    (
        "site: a\nlimits: {drafts: [1]}",
        "2: limits.drafts: expected a whole number from 1 to 1,000,000, found a list",
    ),
    ("site: a\nlimits: {idle: 30}", "2: limits.idle: '30' has no unit; write 30s or 30ms"),
    ("site: a\nlimits: {idle: 30 S}", "2: limits.idle: '30 S' has an unknown unit; write 30s"),
    ("site: a\nlimits: {idle: 3 days}", "2: limits.idle: '3 days' has an unknown unit; units: ms, s, m, h"),
    (
        "site: a\nlimits: {idle: soon}",
        "2: limits.idle: expected a duration, such as 500ms, 1.5s or 2m, found 'soon'",
    ),
    (
        "site: a\nlimits: {idle: 0s}",
        "2: limits.idle: expected whole milliseconds from 1ms to 24h, found '0s'",
    ),
    (
        "site: a\nlimits: {idle: 25h}",
        "2: limits.idle: expected whole milliseconds from 1ms to 24h, found '25h'",
    ),
    (
        "site: a\nlimits: {idle: 1.5ms}",
        "2: limits.idle: expected whole milliseconds from 1ms to 24h, found '1.5ms'",
    ),
    ("site: a\nlimits: {idle: 0.0001ms}", "2: limits.idle: '0.0001ms' is more precise than possible here"),
    ("site: a\nlimits: {retry: 1m}", "2: limits: 'retry' (60000ms) is more than 'retry_most' (30000ms)"),
    ("site: a\nlimits: {resend_most: 1ms}", "2: limits: 'resend' (500ms) is more than 'resend_most' (1ms)"),
    (
        "site: a\nheartbeat: {every: 3s}",
        "2: heartbeat: 'down_after' (5s) must be at least twice 'every' (3s), or one lost heartbeat takes a site down",
    ),
]
BAD_TYPES = [
    ("[]", ": expected names with values, found a list"),
    (
        "{rest: x}",
        (
            ".rest: unknown key; did you mean 'reset'? Known here: allow, backend, checkpoint, cwd, decompose, "
            "env, limits, logic, matrix, max_output, no_new_privileges, on_error and 12 more"
        ),
    ),
    ("{parallel: maybe}", ".parallel: expected true or false (without quotes), found 'maybe'"),
    # matrices
    ("{matrix: [{before: a, after: b}]}", ".matrix[0]: 'result' is missing"),
    ("{matrix: {types: [a]}}", ".matrix: 'matrix' (or 'ResolutionMatrix') is missing"),
    (
        "{matrix: [{before: a, after: b, result: both}]}",
        (
            ".matrix[0].result: unknown result 'both'; known results: take-one, take-both, take-both-keep-order, "
            "take-both-reverse-order, take-both-any-order"
        ),
    ),
    # commands
    ("{reset: ' '}", ".reset: a command cannot be empty; leave the key out if there is none"),
    ("{reset: \"''\"}", ".reset: the first word of a command is a program; here it is empty"),
    ('{read: "a\\nb"}', ".read: a command is one line; to break it in YAML, start it with '>-'"),
    ("{read: echo 'a}", ".read: a quote is never closed in this command"),
    ("{read: echo a\\}", ".read: a backslash ends the line in this command"),
    (f"{{read: {'x' * 65_537}}}", ".read: a command has at most 65,536 characters"),
    # checkpoints
    (
        "{checkpoint: {write: 'w {state}'}}",
        ".checkpoint: 'read' is missing, here or in the type: the command that prints the state",
    ),
    ("{checkpoint: {read: r}}", ".checkpoint: 'write' is missing"),
    (
        "{read: r, checkpoint: {write: w}}",
        ".checkpoint.write: the command must contain {state}, which is replaced by the state that 'read' printed",
    ),
    (
        "{read: r, checkpoint: {write: 'w {state}', after: 0}}",
        ".checkpoint.after: expected a whole number from 1 to 1,000,000, found '0'",
    ),
    *(
        (
            f"{{read: r, checkpoint: {{write: {write}}}}}",
            (
                ".checkpoint.write: {state} must stand outside of quotes: it is quoted when the state is filled in "
                "(for a script: sh -c 'echo \"$1\" > file' - {state})"
            ),
        )
        for write in (
            "'w \"{state}\"'",
            "\"w '{state}'\"",
            "\"sh -c 'echo {state} > file'\"",
            "'w \\{state}'",
        )
    ),
    ("{verify_every: 1h}", ".verify_every: 'read' is missing: the command that prints the state to compare"),
    # on_error
    (
        "{on_error: decompose}",
        ": 'on_error: decompose' needs 'decompose: {amount: …, unit: …}' beside it",
    ),
    (
        "{decompose: {amount: 2, unit: dec 1}}",
        ".decompose: this has no effect unless 'on_error' is decompose",
    ),
    ("{on_error: decompose, decompose: {amount: 2}}", ".decompose: 'unit' is missing"),
    (
        "{on_error: decompose, decompose: {amount: 1, unit: dec 1}}",
        ".decompose.amount: expected a whole number from 2 to 1,000, found '1'",
    ),
    (
        "{on_error: decompose, decompose: {amount: 3, unit: dec x 2}}",
        (".decompose.unit: word 3 of the unit must be 1 or -1, because the number is there (see 'amount'), found '2'"),
    ),
    (
        "{on_error: decompose, decompose: {amount: 2, unit: dec}}",
        (
            ".decompose.unit: word 2 of the unit must be 1 or -1, because the number is there (see 'amount'), "
            "found 'nothing'"
        ),
    ),
    ("{on_error: repair}", ".on_error: unknown plugin 'repair'; Installed for cheops.on_error: none"),
    ("{logic: peritext}", ".logic: unknown plugin 'peritext'; did you mean 'text'? Installed for cheops.logic: text"),
    # how commands run
    ("{allow: redis-cli}", ".allow: expected a list, found 'redis-cli'"),
    ("{allow: ['']}", ".allow[0]: the first word of a command is a program; here it is empty"),
    (
        "{allow: [x, a ... b]}",
        ".allow[1]: the allowed command 'a ... b' cannot be read: '...' can only be the last word; '*' matches one word",
    ),
    ('{allow: [echo "]}', ".allow[0]: a quote is never closed in this command"),
    ("{show: cat}", ".show: expected a list, found 'cat'"),
    ('{show: [cat, echo "]}', ".show[1]: a quote is never closed in this command"),
    ("{timeout: 30}", ".timeout: '30' has no unit; write 30s or 30ms"),
    ("{max_output: 64}", ".max_output: '64' has no unit; write 64B or 64KiB"),
    ("{max_output: 64kib}", ".max_output: '64kib' has an unknown unit; write 64KiB"),
    ("{max_output: 1M}", ".max_output: '1M' has an unknown unit; write 1MB or 1MiB"),
    ("{max_output: much}", ".max_output: expected a size, such as 64KiB or 1GB, found 'much'"),
    ("{max_output: 0B}", ".max_output: expected a size from 1B to 16MiB, found '0B'"),
    ("{max_output: 0.3B}", ".max_output: '0.3B' is more precise than possible here"),
    ("{max_output: 17MiB}", ".max_output: expected a size from 1B to 16MiB, found '17MiB'"),
    ("{env: {1A: x}}", ".env.1A: the name of a variable has letters, digits and _, and no digit first"),
    ("{env: {A: [x]}}", ".env.A: expected a text, found a list"),
    ('{env: {A: "\\0"}}', ".env.A: a variable cannot contain the character U+0000"),
    ("{user: a b}", ".user: expected the name of a user of this machine, found 'a b'"),
    ("{limits: {cpu: 1.5s}}", ".limits.cpu: expected whole seconds, found '1.5s'"),
    ("{limits: {files: 2}}", ".limits.files: expected a whole number from 3 to 1,048,576, found '2'"),
    (
        "{limits: {ram: 1GiB}}",
        ".limits.ram: unknown key. Known here: cpu, files, memory, processes",
    ),
]


def refused(tmp_path: Path, text: str) -> str:
    path = tmp_path / "site.yaml"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(YamlFileError) as error:
        read_site(path)
    start = f"{path}:"
    assert str(error.value).startswith(start)
    return str(error.value).removeprefix(start)


@pytest.mark.parametrize(("text", "complaint"), BAD, ids=[complaint for _, complaint in BAD])
def test_a_mistake_in_the_site_is_refused(tmp_path: Path, text: str, complaint: str) -> None:
    assert refused(tmp_path, text) == complaint


@pytest.mark.parametrize(("settings", "complaint"), BAD_TYPES, ids=range(len(BAD_TYPES)))
def test_a_mistake_in_a_type_is_refused(tmp_path: Path, settings: str, complaint: str) -> None:
    assert refused(tmp_path, f"site: a\ntypes:\n  t: {settings}\n") == f"3: types.t{complaint}"


def test_what_no_get_shows_cannot_be_compared(tmp_path: Path) -> None:
    text = "site: a\nservices:\n  kv: {url: 'http://127.0.0.1:1', rules: etcd, verify_every: 1h}\n"
    assert refused(tmp_path, text).startswith("3: services.kv.verify_every: a rule has 'of: service'")


def test_a_mistake_in_another_file_is_found_there(tmp_path: Path) -> None:
    (tmp_path / "peers.yaml").write_text("b: http://b\nc: nonsense")
    (tmp_path / "matrix.yaml").write_text("matrix: []\ntypo: 1")
    path = tmp_path / "site.yaml"
    for text, complaint in {
        "site: a\npeers: peers.yaml": f"{tmp_path}/peers.yaml:2: c: expected a URL that starts with http:// or https://, "
        "found 'nonsense'; such as http://10.0.0.2:8079",
        "site: a\npeers: none.yaml": f"{tmp_path}/none.yaml: no such file or directory",
        "site: a\ntypes: {t: {matrix: none.json}}": f"{tmp_path}/none.json: no such file or directory",
        "site: a\ntypes: {t: {matrix: matrix.yaml}}": f"{tmp_path}/matrix.yaml:2: typo: unknown key; did you mean 'types'? "
        "Known here: matrix, resolutionMatrix, types",
    }.items():
        path.write_text(text)
        with pytest.raises(YamlFileError) as error:
            read_site(path)
        assert str(error.value) == complaint

"""Headers on their way: what belongs to one connection, what a proxy adds, and what nobody may pretend."""

from tests.gateway.raw import Socket, Upstream
from tests.gateway.stage import both_planes
from tests.gateway.test_conformance import GET, served

plane = both_planes


def test_what_belongs_to_one_connection_stays_there(client: Socket, upstream: Upstream) -> None:
    service = served(
        client, upstream, *GET, "Connection: keep-alive, X-Mine", "X-Mine: 1", "Keep-Alive: 5",
        "Proxy-Authorization: x", "Proxy-Connection: x", "TE: gzip", "X-Yours: 2",
    )  # fmt: skip
    head = service.head()
    gone = ("Connection", "X-Mine", "Keep-Alive", "Proxy-Authorization", "Proxy-Connection", "TE")
    assert not [name for name in gone if name in head]
    assert head["X-Yours"] == "2"
    service.send("HTTP/1.1 200 OK", "Content-Length: 0", "Connection: X-Theirs", "X-Theirs: 1", "Keep-Alive: 9")
    answer = client.head()
    assert not [name for name in ("Connection", "X-Theirs", "Keep-Alive") if name in answer]


def test_a_client_that_takes_trailers_says_so_to_the_service(client: Socket, upstream: Upstream) -> None:
    head = served(client, upstream, *GET, "Connection: TE", "TE: trailers, gzip").head()
    assert head["TE"] == "trailers"
    assert head["Connection"] == "TE"


_BEFORE = (
    "Via: 1.0 edge",
    "X-Forwarded-For: 10.1.1.1",
    "X-Forwarded-Proto: https",
    "Forwarded: for=10.1.1.1",
)


def test_the_service_learns_for_whom_it_works(client: Socket, upstream: Upstream) -> None:
    head = served(client, upstream).head()
    assert head["Via"] == "1.1 cheops-site1"
    assert head["X-Forwarded-For"] == "127.0.0.1"
    assert not [name for name in ("Forwarded", "X-Forwarded-Proto", "X-Forwarded-Host") if name in head]


def test_what_others_added_before_is_kept(client: Socket, upstream: Upstream) -> None:
    head = served(client, upstream, *GET, *_BEFORE).head()
    assert head.all("Via") == ["1.0 edge", "1.1 cheops-site1"]
    assert ", ".join(head.all("X-Forwarded-For")) == "10.1.1.1, 127.0.0.1"  # in one line, or in two
    assert head["X-Forwarded-Proto"] == "https"
    assert head.all("Forwarded") == ["for=10.1.1.1"]


def test_the_service_learns_all_of_it_where_that_is_wanted(hasty_client: Socket, slow_upstream: Upstream) -> None:
    head = served(hasty_client, slow_upstream).head()
    assert head["Forwarded"] == 'for=127.0.0.1;proto=http;host="example.org"'
    assert head["X-Forwarded-For"] == "127.0.0.1"
    assert head["X-Forwarded-Proto"] == "http"
    assert head["X-Forwarded-Host"] == "example.org"


def test_what_others_added_before_is_kept_where_all_is_told(hasty_client: Socket, slow_upstream: Upstream) -> None:
    head = served(hasty_client, slow_upstream, *GET, *_BEFORE).head()
    assert ", ".join(head.all("X-Forwarded-For")) == "10.1.1.1, 127.0.0.1"
    assert head["X-Forwarded-Proto"] == "https"
    assert ", ".join(head.all("Forwarded")) == 'for=10.1.1.1, for=127.0.0.1;proto=http;host="example.org"'


def test_a_client_cannot_pass_for_a_part_of_the_mesh(client: Socket, upstream: Upstream) -> None:
    pretended = ("Hop", "Site", "Operation", "Fallback", "Effect", "For", "Forwarded-By", "Whatever")
    headers = [f"Cheops-{name}: site2" for name in pretended]
    head = served(client, upstream, *GET, *headers, "cheops_hop: site2", "CHEOPS-HOP: site3").head()
    assert not [line for line in head.lines if line.lower().startswith("cheops")]


def test_a_service_cannot_either(client: Socket, upstream: Upstream) -> None:
    service = served(client, upstream)
    service.head()
    service.send("HTTP/1.1 200 OK", "Content-Length: 0", "Cheops-Site: site9", "Cheops-Operation: x")
    answer = client.head()
    assert answer["Cheops-Site"] == "site1"
    assert "Cheops-Operation" not in answer


def test_absolute_targets_are_taken_as_any_server_must(client: Socket, upstream: Upstream) -> None:
    head = served(client, upstream, "GET http://other:81/a?b HTTP/1.1", "Host: other:81").head()
    assert head.first == "GET /a?b HTTP/1.1"
    assert head["Host"] == "other:81"


def test_a_question_to_the_whole_server(client: Socket, upstream: Upstream) -> None:
    assert served(client, upstream, "OPTIONS * HTTP/1.1", "Host: h").head().first == "OPTIONS * HTTP/1.1"

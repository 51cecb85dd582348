"""Clients that let Cheops and the service read one request differently: it is refused, or all sites do the same."""

import gzip
import json
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from cheops.backends.http.ids import meta_id_of
from tests.agent.rig import until
from tests.gateway.raw import connected
from tests.gateway.replicas.sites import Sites, running

PAIR = ("site1", "site2")
BOTH = "site1 & site2"
RULES = [
    {"match": "POST /kv/put", "is": "put", "of": "$.key"},
    {"match": "POST /kv/get", "is": "read"},
    {"match": "POST /by-header", "is": "put", "of": "/$.key/{header:X-Key}"},
    {"match": "POST /delete?many", "is": "refuse", "of": "/notes/{xml:Key}", "why": "it is about several"},
    {"match": "POST /s", "has": "$.id", "is": "put", "of": "/s/{$.id}", "id": "$.sid"},
    {"match": "POST /s", "is": "create", "id": "$.sid"},
]


class LenientSites(Sites):
    """Sites with the service of lenient_service.py."""

    def start_service(self, site: str, *_: str) -> None:
        argv = [sys.executable, "-m", "tests.gateway.replicas.lenient_service", str(self.own(site))]
        self.applications[site] = self.rig.start_beside(site, argv)
        until(lambda: self._answers(site), f"for the service of {site}")

    def state(self, site: str) -> Any:
        return self.direct(site, "GET", "/_state").json


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LenientSites]:
    """Two sites that all tests share: each uses names of its own."""
    sites = LenientSites(tmp_path_factory.mktemp("hostile") / "rig", PAIR, rules=RULES, items={"/s": "/s/{id}"})
    with running(sites):
        yield sites


def replicated(sites: LenientSites, line: str, content: Any, **headers: str) -> Any:
    """A change that is honest, at both sites."""
    method, _, target = line.partition(" ")
    answer = sites.call("site1", method, target, content, BOTH, Cheops_Wait="all", **headers)
    assert answer.status in (200, 201), (answer.status, answer.body)
    return answer.json


def refused(sites: LenientSites, line: str, body: Any, scope: str | None = None, **headers: str) -> str:
    """Send what must be refused, without any effect; gives the reason."""
    before = sites.state("site1")
    method, _, target = line.partition(" ")
    answer = sites.call("site1", method, target, body, scope, **headers)
    assert sites.state("site1") == before, f"{line} was done at one site: {answer.status}, {answer.body!r}"
    assert 400 <= answer.status < 500, (answer.status, answer.body)
    return str(answer.json["detail"])


@pytest.mark.parametrize(
    "body",
    [
        b'{"key": "own", "key": "json-name", "value": 1}',
        b'{"key": "json-name", "key": "own", "value": 1}',
        b'{"KEY": "json-name", "key": "own", "value": 1}',
        b'{"\\u006bey": "json-name", "key": "own", "value": 1}',
    ],
)
def test_a_member_that_is_there_twice_is_refused_where_a_rule_is_about_it(pair: LenientSites, body: bytes) -> None:
    replicated(pair, "POST /kv/put", {"key": "json-name", "value": 0})
    replicated(pair, "POST /kv/put", {"key": "own", "value": 0})
    for scope in (None, BOTH):
        assert "$.key" in refused(pair, "POST /kv/put", body, scope)


def test_a_header_that_is_there_twice_is_refused_where_a_rule_is_about_it(pair: LenientSites) -> None:
    replicated(pair, "POST /by-header", b"0", X_Key="head")
    with connected(pair.address("site1")) as client:
        client.send(
            "POST /by-header HTTP/1.1",
            *("Host: h", f"Scope: {{image: {BOTH}}}", "X-Key: mine", "X-Key: head", "Content-Length: 1"),
        )
        client.raw(b"1")
        assert client.head().status == 422
    assert pair.state("site1")["kv"]["head"] == "0"


@pytest.mark.parametrize("how", ["gzip", "utf-16", "NaN", "another case", "twice", "a query", "a query twice"])
def test_a_condition_on_the_body_is_no_way_round(pair: LenientSites, how: str) -> None:
    sid = replicated(pair, "POST /s", {"text": "first"})["sid"]
    own = pair.replicant("site1", sid)["local_id"]
    plain = json.dumps({"id": own, "text": how}).encode()
    body = {
        "gzip": gzip.compress(plain),
        "utf-16": plain.decode().encode("utf-16"),
        "NaN": plain[:-1] + b', "x": NaN}',
        "another case": plain.replace(b'"id"', b'"ID"'),
        "twice": plain.replace(b'"id"', b'"ID": "' + str(own).encode() + b'", "id"'),
    }.get(how, plain)
    line = f"POST /s{ {'a query': '?x=1', 'a query twice': '?x=1&x=1'}.get(how, '') }"
    refused(pair, line, body, None, **({"Content_Encoding": "gzip"} if how == "gzip" else {}))


@pytest.mark.parametrize(
    "key", ["<![CDATA[xml]]>", "x<!-- -->ml", "<!-- --><![CDATA[x]]>ml", "&#x78;ml", "&own;"], ids=range(5)
)
@pytest.mark.parametrize("query", ["many", "many&many"])
def test_xml_is_no_way_round(pair: LenientSites, key: str, query: str) -> None:
    replicated(pair, "PUT /notes/xml", b"0")
    text = '<!DOCTYPE Delete [<!ENTITY own "xml">]>' if key == "&own;" else ""
    body = f"{text}<Delete><Key>{key}</Key></Delete>"
    for sent in (body.encode(), body.encode("utf-16")):
        refused(pair, f"POST /delete?{query}", sent, Content_Type="application/xml")


@pytest.mark.parametrize("scope", [None, BOTH])
@pytest.mark.parametrize("path", ["/notes//spelled", "//notes/spelled", "/notes%2Fspelled", "/notes/spelled;v=1"])
def test_another_spelling_that_services_read_differently_is_refused(
    pair: LenientSites, path: str, scope: str | None
) -> None:
    replicated(pair, "PUT /notes/spelled", b"0")
    assert "/notes/spelled" in refused(pair, f"PUT {path}", b"1", scope)
    assert "/notes/spelled" in refused(pair, f"DELETE {path}", None, scope)


def test_a_name_that_services_may_take_for_one_that_is_replicated_is_refused(pair: LenientSites) -> None:
    replicated(pair, "PUT /notes/odd%2Fname", b"0")
    refused(pair, "PUT /notes/odd/name", b"1", BOTH)
    replicated(pair, "PUT /notes/odd%2Fname", b"2")


@pytest.mark.parametrize("scope", [None, BOTH])
@pytest.mark.parametrize("way", ["header", "query"])
@pytest.mark.parametrize("line", ["GET /notes/overridden", "POST /kv/get"])
def test_a_read_does_not_become_a_change(pair: LenientSites, line: str, way: str, scope: str | None) -> None:
    replicated(pair, "PUT /notes/overridden", b"0")
    if way == "header":
        refused(pair, line, None, scope, X_HTTP_Method_Override="DELETE")
    else:
        refused(pair, f"{line}?_method=DELETE", None, scope)


@pytest.mark.parametrize("key", [".", ".."])
def test_a_name_is_not_a_way_up(pair: LenientSites, key: str) -> None:
    assert "'.' or '..'" in refused(pair, "POST /kv/put", {"key": key, "value": 1}, BOTH)


def test_a_name_that_is_the_id_of_another_replicant_is_not_that_replicant(pair: LenientSites) -> None:
    replicated(pair, "PUT /notes/victim", b"0")
    victim = meta_id_of("path", "image", "/notes/victim")
    operations = len(pair.log("site1", victim)["operations"])
    refused(pair, "POST /kv/put", {"key": victim, "value": 1}, BOTH)
    refused(pair, "POST /kv/put", {"key": victim, "value": 1})
    assert len(pair.log("site1", victim)["operations"]) == operations


def test_what_is_not_replicated_is_as_ever(pair: LenientSites) -> None:
    replicated(pair, "PUT /notes/other", b"0")
    for path in ("/notes//free", "/notes/free%2Fname", "/notes/free;v=1"):
        assert pair.call("site2", "PUT", path, b"1").status == 200
    assert pair.call("site2", "GET", "/notes/other?_method=HEAD").status in (200, 404)
    assert pair.call("site2", "POST", "/s?x=1", {"text": "own"}).status == 200
    assert pair.call("site2", "POST", "/notes/free", b"2", X_HTTP_Method_Override="PUT").status == 200
    assert pair.call("site2", "POST", "/kv/get?x=1&x=2", {"key": "nothing"}).status == 200

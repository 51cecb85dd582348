"""What a request is about, by the rules of its service."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from cheops.backends.http.ids import meta_id_of
from cheops.backends.http.interpretation import (
    failure,
    id_at,
    meaning_of,
    paths_at,
    refuse_unexplained,
    refuse_unexplained_query,
    without_members,
)
from cheops.backends.http.payload import part_name
from cheops.config.rule_syntax import SERVICE_RULES, rule_set, rule_sets
from cheops.config.service_rules import RuleKind, ServiceRules, Success
from cheops.config.services import ReplicationConfig
from cheops.config.site import parse_site
from cheops.errors import ClientError
from cheops.gateway.headers import RequestHead
from cheops.yaml_file import YamlFileError, parse_yaml

JSON = (("Content-Type", "application/json"),)
META = meta_id_of("path", "x", "/y")


def rules(*written: Any) -> ServiceRules:
    return SERVICE_RULES.read(
        parse_yaml(yaml.safe_dump(list(written), default_flow_style=True, width=9999), "site.yaml")
    )


def about(known: ServiceRules, line: str, content: Any = None) -> tuple[str, str, str] | None:
    method, _, target = line.partition(" ")
    found = meaning_of(known, method, target, JSON, None if content is None else json.dumps(content).encode())
    return None if found is None else (found.kind.value, found.item, found.part)


@pytest.mark.parametrize("name", rule_sets())
def test_the_sets_that_come_with_cheops_can_be_read(name: str) -> None:
    assert rule_set(name).rules


def test_a_path_with_variables() -> None:
    known = rules({"match": "PUT /{bucket}/{key**}?tagging", "is": "put tagging", "of": "/{bucket}/{key}"})
    assert about(known, "PUT /b/a/long/key?tagging") == ("put", "/b/a/long/key", "tagging")
    assert about(known, "PUT /b/a/long/key?tagging=&versionId=3") is None  # a query is part of what it is about
    assert about(known, "PUT /b/k") is None
    assert about(known, "GET /b/k?tagging") is None


def test_a_member_without_a_value_never_makes_two_values_one_part() -> None:
    """If `?lang=de` replaced `?lang=fr`, a site that was cut off would lack one of them, and nobody would know."""
    known = rules(
        {"match": "PUT /{a}?lang", "is": "put lang", "of": "/{a}"},
        {"match": "DELETE /{a}?lang", "is": "delete lang", "of": "/{a}"},
        {"match": "POST /{a}?watch", "is": "read"},
        {"match": "POST /{a}?run", "is": "action run", "of": "/{a}"},
    )
    assert about(known, "PUT /x?lang=") == ("put", "/x", "lang")
    assert about(known, "PUT /x?lang=fr") is None
    assert about(known, "DELETE /x?lang=fr") is None
    assert about(known, "POST /x?watch=1") == ("read", "", "")
    assert about(known, "POST /x?run=now") == ("action", "/x", "run")


@pytest.mark.parametrize("target", ["/docs/a?lang=fr", "/docs/a?tagging", "/docs/a?id=1&X-2=y"])
def test_the_lines_of_a_refusal_can_be_copied_into_the_rules(target: str) -> None:
    head = RequestHead("PUT", target, JSON)
    with pytest.raises(ClientError) as refused:
        refuse_unexplained_query("app", ServiceRules(), head, "/docs/a")
    lines = re.findall(r'\{match: "[^"]*", is: (?:"[^"]*"|[^}]*)\}', str(refused.value))
    assert len(lines) == (1 if target.endswith("tagging") else 2)
    for line in lines:
        found = about(rules(yaml.safe_load(line)), f"PUT {target}")
        assert found is not None, line
        assert (found[0], found[1], bool(found[2])) == ("put", "/docs/a", True)
    with pytest.raises(ClientError) as unexplained:
        refuse_unexplained("app", RequestHead("POST", "/run", JSON))
    action, read = re.findall(r'\{match: "[^"]*", is: [^}]*\}', str(unexplained.value))
    assert about(rules(yaml.safe_load(action)), "POST /run") == ("action", "/", "")
    assert about(rules(yaml.safe_load(read)), "POST /run") == ("read", "", "")


def test_query_members_that_only_select() -> None:
    known = rules({"match": "PUT /{a}?part={n}", "is": "put {n}", "of": "/{a}", "query": ["pretty"]})
    assert about(known, "PUT /x?pretty&part=7") == ("put", "/x", "7")
    assert about(known, "PUT /x?part=7&other") is None
    assert about(known, "PUT /x?part=7&part=8") is None  # services differ in which one counts


def test_members_of_the_body_the_query_and_headers() -> None:
    known = rules(
        {"match": "POST /put", "is": "put", "of": "$.a.key"},
        {"match": "POST /drop?{}".replace("{}", "key={key}"), "is": "delete", "of": "/$.a.key/{key}"},
        {"match": "POST /move", "is": "action move", "of": "header:X-Thing"},
    )
    assert about(known, "POST /put", {"a": {"key": "x/y"}}) == ("put", "/$.a.key/x%2Fy", "")
    assert about(known, "POST /put", {"a": {"key": 5}}) == ("put", "/$.a.key/5", "")
    assert about(known, "POST /drop?key=5") == ("delete", "/$.a.key/5", "")
    for content in ({}, {"a": 1}, {"a": {"key": None}}, {"a": {"key": True}}, {"a": {"key": ""}}, [1]):
        with pytest.raises(ClientError, match=r"'POST /put' is about \$.a.key of the request, and there is none"):
            about(known, "POST /put", content)
    with pytest.raises(ClientError, match="header:X-Thing"):
        about(known, "POST /move")


def test_one_order_for_a_whole_service() -> None:
    known = rules("etcd")
    assert known.is_whole
    assert about(known, "POST /v3/kv/put", {"key": "Zm9v"}) == ("put", "/", "$.key/Zm9v")
    assert about(known, "POST /v3/kv/txn") == ("action", "/", "txn")
    assert about(known, "POST /v3/kv/range") == ("read", "", "")
    assert about(known, "POST /v3/lease/grant") is None
    assert about(known, "GET /version") is None


def test_names_that_clients_choose() -> None:
    known = rules("kubernetes")
    place = "/apis/apps/v1/namespaces/default/deployments"
    content = {"metadata": {"name": "web"}}
    assert about(known, f"POST {place}?fieldManager=kubectl", content) == ("create", f"{place}/web", "")
    assert about(known, f"PATCH {place}/web") == ("patch", f"{place}/web", "")
    assert about(known, f"PATCH {place}/web/scale") == ("patch", f"{place}/web", "scale")
    assert about(known, f"DELETE {place}/web") == ("delete", f"{place}/web", "")
    assert about(known, f"POST {place}?dryRun=All", content) == ("read", "", "")
    with pytest.raises(ClientError, match=r"\$.metadata.name"):
        about(known, f"POST {place}", {"metadata": {"generateName": "web-"}})


@pytest.mark.parametrize(
    ("written", "problem"),
    [
        ({"match": "put /x", "is": "put"}, "expected a method and a path"),
        ({"match": "PUT /{x}/{x}", "is": "put"}, "a variable is there twice"),
        ({"match": "PUT /{X}", "is": "put"}, "a variable is written"),
        (
            {"match": "PUT /x", "is": "write"},
            "expected what a request does: read, create, put, patch, delete, action",
        ),
        ({"match": "PUT /x", "is": "action"}, "'of' is missing"),
        ({"match": "PUT /x", "is": "put", "of": "x"}, "expected a path such as"),
        ({"match": "PUT /x", "is": "put", "of": "/{y}"}, "'{y}' is neither in 'match' nor a member"),
        ({"match": "PUT /x", "is": "put {y}"}, "'{y}' is not in 'match'"),
        ({"match": "PUT /x", "is": "read", "of": "/x"}, "a read is not logged"),
        ({"match": "PUT /x", "is": "patch", "id": "$.id"}, "only the response to a create, or to a put, has a new id"),
        ({"match": "PUT /x", "is": "move"}, "a move, and nothing else, has 'to'"),
        ({"match": "PUT /x", "is": "put", "to": "/y"}, "a move, and nothing else, has 'to'"),
        ({"match": "PUT /x", "is": "move", "to": "/y", "of": "/z"}, "a move is about what is at the path"),
        ({"match": "PUT /x", "is": "refuse"}, "a rule that refuses requests, and no other, has 'why'"),
        ({"match": "PUT /x", "is": "put", "has": "id"}, "expected a member of the body, such as $.id"),
        ({"match": "PUT /x", "is": "put", "name": "$.id"}, "expected where the body of a create has the name"),
        ({"match": "PUT /x", "is": "put", "ok": {"colour": "x"}}, "unknown condition 'colour'"),
        ({"match": "PUT /x", "is": "put", "off": "x"}, "unknown key; did you mean 'of'?"),
        ({"is": "put"}, "'match' is missing"),
        ("etc", "unknown set of rules 'etc'; did you mean 'etcd'?"),
    ],
)
def test_a_mistake_is_refused_with_its_line(written: Any, problem: str) -> None:
    with pytest.raises(YamlFileError) as error:
        rules(written)
    assert problem in str(error.value)
    assert str(error.value).startswith("site.yaml:1: ")


def test_what_counts_as_success() -> None:
    ok = Success(frozenset({200}), (("X-Done", "yes"),), ("unpack ok",), ("ng ",), ((("done",), "true"),))
    body = b'{"done": true, "text": "unpack ok"}'
    assert failure(ok, 200, (("X-Done", "yes"),), body) is None
    assert failure(ok, 201, (("X-Done", "yes"),), body) == "its status is 201"
    assert failure(ok, 200, (), body) == "its header X-Done does not have 'yes'"
    assert failure(ok, 200, (("X-Done", "yes"),), b'{"done": true}') == "its body does not have 'unpack ok'"
    assert "has 'ng '" in str(failure(ok, 200, (("X-Done", "yes"),), body + b"ng refs"))
    assert failure(ok, 200, (("X-Done", "yes"),), body.replace(b"true", b"false")) == "$.done is not true"


def test_where_an_id_is() -> None:
    assert id_at("xml:UploadId", (), b"<R xmlns='x'><UploadId>a&amp;b</UploadId></R>") == "a&b"
    assert id_at("header:Location", (("Location", "http://h/x/y%20z?q"),), b"") == "y z"
    assert id_at("$.a.b", (), b'{"a": {"b": 5}}') == 5
    assert id_at("$.a", (), b"no json") == ""


def test_members_of_one_site_are_removed() -> None:
    local = frozenset({("metadata", "uid"), ("status",), ("items", "id")})
    body = b'{"metadata": {"uid": "1", "name": "x"}, "status": {}, "items": [{"id": 1, "n": 2}, 3]}'
    assert json.loads(without_members(body, local)) == {"metadata": {"name": "x"}, "items": [{"n": 2}, 3]}
    assert without_members(b'{"a":  1}', local) == b'{"a":  1}'  # as it is, if there is nothing to remove
    assert without_members(b"not json", local) == b"not json"


def test_two_long_parts_never_have_one_type() -> None:
    one, other = part_name("put", "x" * 200), part_name("put", "x" * 199 + "y")
    assert one != other
    assert len(one) == len(other) == 100


def test_kinds_are_what_the_documentation_says() -> None:
    assert [kind.value for kind in RuleKind] == [
        *("read", "create", "put", "patch", "delete", "action", "move", "refuse", "session"),
    ]


def test_a_rule_that_needs_a_member_of_the_body() -> None:
    known = rules("alertmanager")
    assert about(known, "POST /api/v2/silences", {"id": META, "comment": "x"}) == ("put", f"/api/v2/silence/{META}", "")
    for content in ({"comment": "x"}, {"id": ""}, [1]):
        assert about(known, "POST /api/v2/silences", content) == ("create", "", "")
    found = meaning_of(known, "POST", "/api/v2/silences", JSON, json.dumps({"id": META}).encode())
    assert found is not None
    assert not found.is_named
    assert (found.meta_id("alerts"), found.renews_id) == (META, True)
    nova = rules("openstack")
    place = f"POST /v2.1/servers/{META}/action"
    assert about(nova, place, {"migrate": None}) == ("refuse", "", "")  # it is there, though it is null
    assert about(nova, place, {"os-getConsoleOutput": {}}) == ("read", "", "")
    assert about(nova, place, {"reboot": {"type": "SOFT"}}) == ("action", f"/v2.1/servers/{META}", "")
    relates = {"body": "x", "m.relates_to": {"event_id": "y"}}
    place = f"PUT /_matrix/client/v3/rooms/{META}/send/m.room.message/1"
    assert about(rules("synapse"), place, relates) == ("refuse", "", "")


def test_a_move_has_a_new_path() -> None:
    known = rules("jupyter")
    path, body = "/api/contents/a/b%20c.txt", {"path": "/d e/f.txt"}
    found = meaning_of(known, "PATCH", path, JSON, json.dumps(body).encode())
    assert found is not None
    assert (found.kind, found.item, found.to) == ("move", "/api/contents/a/b%20c.txt", "/api/contents/d%20e/f.txt")
    with pytest.raises(ClientError, match=r"is about \$.path of the request, and there is none"):
        about(known, f"PATCH {path}", {})
    with pytest.raises(ClientError, match="members are read from JSON only"):
        meaning_of(known, "PATCH", path, (("Content-Type", "text/plain"),), b"x")


@pytest.mark.parametrize("name", ["LOCK", "UNLOCK", "MOVE", "COPY"])
def test_what_webdav_does_at_one_site_only(name: str) -> None:
    assert about(rules("webdav"), f"{name} /dav/a.txt") == ("refuse", "", "")


def test_the_sets_say_where_ids_are_and_how_operations_combine() -> None:
    text = "site: a\nsecurity: none\nservices: {x: {url: 'http://127.0.0.1:1', listen: '127.0.0.1:2', %s}}\n"

    def config(more: str) -> ReplicationConfig:
        return parse_site(text % more, Path("a.yaml")).services["x"].replication

    found = config("rules: alertmanager, items: {/x: '/y/{id}'}, refs: {silenceID: /own}")
    assert found.items == (("/x", "/y/{id}"), ("/api/v2/silences", "/api/v2/silence/{id}"))
    assert dict(found.refs)["silenceID"] == "/own"  # what the configuration says itself counts
    flows = config("rules: node-red").matrix
    assert flows.replaces("put", "action flow")
    assert flows.both_stay_when_concurrent("put", "action flow")
    own = "matrix: [{before: put, after: action flow, result: take-both}]"
    assert config(f"rules: node-red, {own}").matrix.commutes("put", "action flow")
    assert ("owner",) in config("rules: openstack").ignore
    assert [config(f"rules: {name}").errors for name in ("openstack", "s3", "etcd")] == ["openstack", "s3", "problem"]
    assert config("rules: s3, errors: plain").errors == "plain"


NAMESPACE = bytes.fromhex(  # what `kubectl create namespace team` sends
    "6b387300 0a0f0a0276311209 4e616d657370616365 121c0a140a047465616d12001a002200 2a003200380042001200 1a020a001a002200"
)
PROTOBUF = (("Content-Type", "application/vnd.kubernetes.protobuf"),)


def test_a_name_in_protobuf() -> None:
    known = rules("kubernetes")
    found = meaning_of(known, "POST", "/api/v1/namespaces", PROTOBUF, NAMESPACE)
    assert found is not None
    assert (found.kind, found.item) == ("create", "/api/v1/namespaces/team")
    for broken in (b"", NAMESPACE[:4], NAMESPACE[:30], NAMESPACE[4:], NAMESPACE + NAMESPACE[4:], b"\xff" * 40):
        with pytest.raises(ClientError, match=r"is about \$.metadata.name of the request, and there is none"):
            meaning_of(known, "POST", "/api/v1/namespaces", PROTOBUF, broken)


# -- what services read differently ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "body",
    [
        b'{"a": {"key": 1}, "a": {"key": 2}}',
        b'{"a": {"key": 1, "key": 1}}',
        b'{"a": {"Key": 1}}',
        b'{"A": {"key": 2}, "a": {"key": 1}}',
        b'{"a": {"key": 1, "\\u006bey": 2}}',
        '{"a": {"key": 1, "\u212aey": 2}}'.encode(),  # to Go, the sign for Kelvin is a k
        b'{"n": ' + b"1" * 5_000 + b', "a": {"key": 1, "key": 2}}',
        b'{"a": {"key": 1, "key": 2}, "deep": ' + b"[" * 900 + b"]" * 900 + b"}",
    ],
)
def test_a_member_that_services_may_read_differently(body: bytes) -> None:
    known = rules({"match": "POST /put", "is": "put", "of": "$.a.key"})
    with pytest.raises(ClientError, match=r"about \$.a.key|no text or number"):
        meaning_of(known, "POST", "/put", JSON, body)
    has = rules({"match": "POST /put", "has": "$.a.key", "is": "put"}, {"match": "POST /put", "is": "create"})
    with pytest.raises(ClientError, match=r"about \$.a.key"):
        meaning_of(has, "POST", "/put", JSON, body)


def test_a_name_that_is_elsewhere_too_is_no_doubt() -> None:
    known = rules({"match": "POST /put", "is": "put", "of": "$.a.key"})
    content = {"a": {"key": "x", "other": {"key": 1, "Key": "\\"}}, "KEY": 2, "list": [{"a": {"KEY": 1}}]}
    assert about(known, "POST /put", content) == ("put", "/$.a.key/x", "")


def test_a_form_a_header_and_xml_that_services_may_read_differently() -> None:
    known = rules(
        {"match": "POST /form", "is": "put", "of": "form:key"},
        {"match": "POST /header", "is": "put", "of": "header:X-Key"},
        {"match": "POST /xml", "is": "put", "of": "xml:Key"},
        {"match": "POST /with", "header": "X-Copy", "is": "refuse", "why": "no"},
    )
    form = (("Content-Type", "application/x-www-form-urlencoded"),)
    for target, headers, body in (
        ("/form", form, b"key=a&key=b"),
        ("/header", (("X-Key", "a"), ("x_key", "b")), b""),
        ("/xml", (), b"<a><Key>a</Key><Key>b</Key></a>"),
        ("/xml", (), b"<a><Key><![CDATA[a]]></Key></a>"),
        ("/xml", (), b'<?xml version="1.0" encoding="utf-7"?><Key>a</Key>'),
        ("/xml", (("Content-Encoding", "gzip"),), b"<Key>a</Key>"),
    ):
        with pytest.raises(ClientError, match="services differ in how they read this"):
            meaning_of(known, "POST", target, headers, body)
    found = meaning_of(known, "POST", "/with", (("X_Copy", "a"),), None)  # some programs read _ as -
    assert found is not None
    assert found.kind is RuleKind.REFUSE


def test_a_request_is_about_so_many_resources_at_most() -> None:
    known = rules({"match": "POST /many", "is": "refuse", "of": "/{xml:A}/{xml:B}", "why": "no"})
    (rule,) = known.rules

    def found(a: int, b: int) -> list[str]:
        body = "".join(f"<A>{one}</A>" for one in range(a)) + "".join(f"<B>{one}</B>" for one in range(b))
        return paths_at(rule, rule.of, {}, (), "", body.encode())

    assert len(found(100, 100)) == 10_000
    for a, b in ((101, 100), (10_001, 1)):
        with pytest.raises(ClientError, match="more than 10,000"):
            found(a, b)


def test_names_do_not_lead_to_other_names() -> None:
    known = rules(
        {"match": "POST /b/{bucket}", "is": "put", "of": "/b/{bucket}/{$.key}"},
        {"match": "POST /q?a={a}&b={b}", "is": "put", "of": "/q/{a}/{b}"},
        {"match": "PATCH /f/{path**}", "is": "move", "to": "/f/{$.path**}"},
        {"match": "POST /things", "is": "create", "name": "$.name"},
    )
    for line, content in (
        ("POST /b/one", {"key": ".."}),
        ("POST /b/one", {"key": "."}),
        ("POST /q?a=..&b=z", None),
        ("PATCH /f/a", {"path": "../../etc"}),
        ("PATCH /f/a", {"path": "a//b"}),
        ("POST /things", {"name": ".."}),
    ):
        with pytest.raises(ClientError, match=r"is '\.' or '\.\.'"):
            about(known, line, content)
    assert about(known, "POST /q?a=x/y&b=z") != about(known, "POST /q?a=x&b=y/z")


def test_objects_of_s3_whose_names_end_with_a_slash_are_not_those_without() -> None:
    assert about(rule_set("s3"), "PUT /bucket/folder") == ("put", "/bucket/folder", "")
    for line in ("PUT /bucket/folder/", "DELETE /bucket/folder/", "POST /bucket/folder/?uploads"):
        assert about(rule_set("s3"), line) == ("refuse", "", "")
    assert about(rule_set("s3"), "PUT /bucket/") == ("put", "/bucket", "")
    assert about(rule_set("s3"), "POST /bucket?delete&delete") == ("refuse", "", "")


def test_a_checkpoint_of_jupyter_is_a_part_of_its_file() -> None:
    found = about(rule_set("jupyter"), "DELETE /api/contents/a.ipynb/checkpoints/1")
    assert found == ("action", "/api/contents/a.ipynb", "drop 1")

"""Conditions, keys, waiting, levels: what a client may say beside what it wants."""

import pytest

from cheops.backends.http.request import check_conditions, refuse_encoded, refuse_other_type
from cheops.backends.http.translation import is_partial_json
from cheops.config.rule_syntax import SERVICE_RULES
from cheops.errors import ClientError
from cheops.gateway.headers import RequestHead
from cheops.gateway.interfaces import Response
from cheops.yaml_file import parse_yaml
from tests.agent.rig import RefusedByAgentError, until
from tests.gateway.replicas.sites import EVERYWHERE, SITES, Sites
from tests.support.command import run_here


def sizes(sites: Sites, name: str) -> list[object]:
    return [item.get("size") for site in SITES for item in sites.images(site) if item["name"] == name]


# -- parts -----------------------------------------------------------------------------------------------


def test_a_part_of_json_is_answered_with_the_whole_since_its_ids_are_others(three: Sites) -> None:
    meta_id = three.create(name="parted")
    for site in SITES:
        for target in (f"/images/{meta_id}", "/images?name=parted"):
            answer = three.call(site, "GET", target, Range="bytes=5-60", If_Range='"any"')
            assert (answer.status, answer.headers["Content-Range"]) == (200, None)
            assert (answer.json.get("images") or [answer.json])[0]["id"] == meta_id
    elsewhere = three.create("site1", "site1 & site2", name="parted too")
    assert three.call("site3", "GET", f"/images/{elsewhere}", Range="bytes=0-9").json["id"] == elsewhere


def test_a_part_of_anything_else_is_a_part(three: Sites) -> None:
    meta_id = three.create(name="plain")
    answer = three.call("site2", "GET", f"/images/{meta_id}", Range="bytes=2-5", Accept="text/plain")
    assert (answer.status, answer.body) == (206, b"name")


def test_a_part_of_several_may_be_one_of_json() -> None:
    def is_part(status: int, media_type: str) -> bool:
        return is_partial_json(Response(status, (("Content-Type", media_type),)))

    assert is_part(206, "application/json; charset=utf-8")
    assert is_part(206, "multipart/byteranges; boundary=x")
    assert not is_part(206, "application/octet-stream")
    assert not is_part(200, "application/json")


# -- conditions ------------------------------------------------------------------------------------------


def test_if_match_is_held_against_the_local_replica(three: Sites) -> None:
    meta_id = three.create(name="match", size=0)
    path = f"/images/{meta_id}"
    tag = three.call("site2", "GET", path).headers["ETag"]
    done = three.call("site2", "PATCH", path, {"size": 1}, If_Match=tag, Cheops_Wait="all")
    assert done.status == 200
    late = three.call("site2", "PATCH", path, {"size": 2}, If_Match=tag)
    assert late.status == 412
    assert "If-Match: the replica here has the tag" in late.json["detail"]
    assert sizes(three, "match") == [1, 1, 1]
    # the other sites, whose tags are others, were not asked for that one
    assert not [told for told in three.told("site1") if "If-Match" in told["headers"]]


def test_if_none_match_keeps_from_replacing_what_is_there(three: Sites) -> None:
    first = three.call("site1", "PUT", "/notes/once", {"n": 1}, EVERYWHERE, If_None_Match="*", Cheops_Wait="all")
    assert first.status == 201
    second = three.call("site2", "PUT", "/notes/once", {"n": 2}, EVERYWHERE, If_None_Match="*")
    assert second.status == 412
    assert three.direct("site3", "GET", "/notes/once").json["n"] == 1


@pytest.mark.parametrize(
    ("condition", "value", "tag", "modified", "holds"),
    [
        ("If-Match", '"a"', '"a"', None, True),
        ("If-Match", '"b", "a"', '"a"', None, True),
        ("If-Match", '"b"', '"a"', None, False),
        ("If-Match", 'W/"a"', 'W/"a"', None, False),  # a weak tag is good for reading only
        ("If-Match", "*", None, None, True),
        ("If-Match", '"a"', None, None, False),
        ("If-None-Match", '"a"', 'W/"a"', None, False),
        ("If-None-Match", '"b"', '"a"', None, True),
        ("If-None-Match", "*", '"a"', None, False),
        ("If-Unmodified-Since", "Mon, 16 Nov 2026 04:52:18 GMT", None, "Mon, 16 Nov 2026 04:52:18 GMT", True),
        (
            "If-Unmodified-Since",
            "Mon, 16 Nov 2026 04:52:18 GMT",
            None,
            "Mon, 16 Nov 2026 04:52:19 GMT",
            False,
        ),
        ("If-Unmodified-Since", "Mon, 16 Nov 2026 04:52:18 GMT", None, None, False),
        ("If-Unmodified-Since", "yesterday", None, "Mon, 16 Nov 2026 04:52:19 GMT", False),
    ],
)
def test_conditions_are_those_of_http(
    condition: str, value: str, tag: str | None, modified: str | None, holds: bool
) -> None:
    headers = [("ETag", tag)] if tag else []
    headers += [("Last-Modified", modified)] if modified else []
    asked = RequestHead("PUT", "/x", ((condition, value),))
    if holds:
        check_conditions(asked, 200, tuple(headers))
    else:
        with pytest.raises(ClientError) as refused:
            check_conditions(asked, 200, tuple(headers))
        assert refused.value.status == 412


def test_of_two_at_once_with_the_same_tag_one_wins(three: Sites) -> None:
    from concurrent.futures import ThreadPoolExecutor  # noqa: PLC0415

    meta_id = three.create(name="race", size=0)
    path = f"/images/{meta_id}"
    tag = three.call("site1", "GET", path).headers["ETag"]
    with ThreadPoolExecutor(8) as pool:
        answers = list(
            pool.map(lambda n: three.call("site1", "PATCH", path, {"size": n}, If_Match=tag).status, range(1, 9))
        )
    assert sorted(answers) == [200] + [412] * 7


def test_a_change_that_nobody_waits_for_counts_for_the_next_condition(three: Sites) -> None:
    meta_id = three.create(name="later", size=0)
    path = f"/images/{meta_id}"
    tag = three.call("site1", "GET", path).headers["ETag"]
    three.direct("site1", "POST", "/_fault", {"method": "PATCH", "slow_s": 1, "times": 1})
    first = three.call("site1", "PATCH", path, {"size": 1}, If_Match=tag, Prefer="respond-async")
    second = three.call("site1", "PATCH", path, {"size": 2}, If_Match=tag)
    assert (first.status, second.status) == (202, 412)
    until(lambda: sizes(three, "later") == [1, 1, 1])


# -- what is told ------------------------------------------------------------------------------------------


def test_headers_hold_any_text(three: Sites) -> None:
    """As bytes, which they are: neither the service nor the client gets others than were sent."""
    title = "Zoë 中".encode().decode("latin-1")
    answer = three.call("site1", "POST", "/images", {"name": "titled"}, EVERYWHERE, X_Title=title)
    assert answer.status == 201, answer.body
    told = next(one for one in three.told("site1") if "titled" in one["body"])["headers"]["X-Title"]
    assert told == title
    links = answer.headers.get_all("Link") or []
    assert f"</images/{answer.json['id']}>; title={title}" in links


def test_what_a_service_gives_an_id_below_a_replicant_is_refused_without_items(three: Sites) -> None:
    server = three.call("site1", "POST", "/servers", {"name": "holder"}, EVERYWHERE, Cheops_Wait="all").json["id"]
    made = three.call("site1", "POST", f"/servers/{server}/disks", {"name": "d"}, Cheops_Wait="all")
    assert made.status == 422
    assert 'services.image.items, at all sites: {"/servers/*/disks": "/servers/*/disks/{id}"}' in made.json["detail"]
    rule = '{match: "POST /servers/{a}/disks", is: action, of: "/servers/{a}"}'
    assert rule in made.json["detail"]
    assert SERVICE_RULES.read(parse_yaml(f"[{rule}]", "site.yaml"))
    assert three.call("site1", "POST", f"/servers/{server}/reboot", {}).status < 300


# -- keys ------------------------------------------------------------------------------------------------------


def test_a_key_makes_a_create_happen_once_at_whatever_site_it_comes(three: Sites) -> None:
    body = {"name": "keyed"}
    answers = [
        three.call(site, "POST", "/images", body, EVERYWHERE, Idempotency_Key="k1", Cheops_Wait="all")
        for site in ("site1", "site1", "site2")
    ]
    assert [answer.status for answer in answers] == [201, 201, 201]
    assert len({answer.json["id"] for answer in answers}) == 1
    assert answers[0].headers["Cheops-Operation"] == answers[1].headers["Cheops-Operation"]
    assert [len([i for i in three.images(site) if i["name"] == "keyed"]) for site in SITES] == [1, 1, 1]
    other = three.call("site1", "POST", "/images", {"name": "other"}, EVERYWHERE, Idempotency_Key="k1")
    assert other.status == 422


def test_a_key_makes_an_update_happen_once(three: Sites) -> None:
    meta_id = three.create(name="rebooted")
    path = f"/images/{meta_id}/reboot"
    answers = [three.call("site1", "POST", path, {}, Idempotency_Key="k2", Cheops_Wait="all").json for _ in range(3)]
    assert answers == [{"done": "reboot", "times": 1}] * 3


# -- waiting ---------------------------------------------------------------------------------------------------


def test_who_does_not_wait_is_told_where_to_ask(three: Sites) -> None:
    answer = three.call("site1", "POST", "/images", {"name": "async"}, EVERYWHERE, Prefer="respond-async")
    assert answer.status == 202
    assert answer.json["ask"].startswith(three.rig.url("site1"))
    assert answer.json["operation"] == "site1:1"
    path = answer.json["ask"].removeprefix(three.rig.url("site1"))
    until(lambda: b'"OK"' in three.rig.request("site1", "GET", path))
    assert answer.headers["Location"] == f"/images/{answer.json['resource']}"


def test_a_wrong_word_is_refused(three: Sites) -> None:
    answer = three.call("site1", "POST", "/images", {"name": "x"}, EVERYWHERE, Cheops_Wait="some")
    assert (answer.status, answer.json["detail"]) == (
        400,
        "Cheops-Wait is one of first, quorum, all, not 'some'",
    )


@pytest.mark.parametrize("level", ["strong", "atomic", "none"])
def test_levels_that_are_not_there_yet_say_so(three: Sites, level: str) -> None:
    answer = three.call("site1", "POST", "/images", {"name": "x"}, f"{level}({EVERYWHERE})")
    assert answer.status == 501
    assert f"the level '{level}' is not implemented yet" in answer.json["detail"]
    foreseen = three.call("site1", "POST", "/images", {"name": "x"}, f"{level}({EVERYWHERE})", Cheops_Dry_Run="1")
    assert (foreseen.status, foreseen.json["detail"]) == (501, answer.json["detail"])


@pytest.mark.parametrize("level", ["strong", "atomic", "none"])
def test_a_level_is_refused_in_the_same_words_everywhere(three: Sites, level: str) -> None:
    """HTTP, its dry run, commands, their dry run, and `scope explain`. Also a read: it would not have the level."""
    scope, said = f"{level}({EVERYWHERE})", set()
    for method in ("GET", "POST", "PUT", "DELETE"):
        answer = three.call("site1", method, "/images/x", {}, scope)
        assert answer.status == 501
        said.add(answer.json["detail"])
        said.add(three.call("site1", method, "/images/x", {}, scope, Cheops_Dry_Run="1").json["detail"])
    assert len(said) == 1
    words = said.pop()
    for options in ([], ["--dry-run"]):
        command = ["exec", "--id", "x", "--type", "t", "--command", "true", "--sites", scope, *options]
        done = run_here(*command, "--url", three.rig.url("site1"))
        assert (done.code, words in done.out + done.err) == (1, True), done
    assert run_here("scope", "explain", scope, "--sites", "examples/sites.yaml").code != 0, "it knows other sites"
    explained = run_here("scope", "explain", f"{level}(paris & brest)", "--sites", "examples/sites.yaml")
    assert explained.out.count(f"is refused: {words}") == 4
    with pytest.raises(RefusedByAgentError, match="no resource"):
        three.rig.request("site1", "GET", "/api/v1/resources/x/status")


def test_a_patch_of_what_is_not_replicated_says_so(three: Sites) -> None:
    own = three.direct("site1", "POST", "/images", {"name": "single"}).json
    answer = three.call("site1", "PATCH", own["self"], {"size": 1}, EVERYWHERE)
    assert answer.status == 404
    assert "nothing that is replicated is at" in answer.json["detail"]


# -- bodies that nobody can look into --------------------------------------------------------------------------


def test_a_body_that_cannot_be_looked_into_is_refused() -> None:
    def head(*headers: tuple[str, str]) -> RequestHead:
        return RequestHead("PUT", "/x", headers)

    for encoding in (("gzip",), ("identity", "gzip"), ("gzip", "identity")):
        with pytest.raises(ClientError, match="must not be compressed"):
            refuse_encoded(head(*(("Content-Encoding", one) for one in encoding)))
    with pytest.raises(ClientError, match="in UTF-8, not in 'utf-16le'"):
        refuse_encoded(head(("Content-Type", 'application/json; charset="utf-16le"')))
    for charset in ("utf-8", "UTF-8", "ISO-8859-1", "us-ascii"):
        refuse_encoded(head(("Content-Type", f"application/json;charset={charset}")))
    with pytest.raises(ClientError, match="has one Content-Type"):
        refuse_other_type(head(("Content-Type", "text/plain"), ("content-type", "application/json")))
    refuse_other_type(head(("Content-Type", "text/plain")))

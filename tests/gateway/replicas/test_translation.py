"""Ids on their way in and out: what is meant is replaced, all else stays byte by byte."""

import asyncio
import gzip
import json
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cheops.backends.http.copies import Copy, Index
from cheops.backends.http.ids import (
    MAX_ID_BYTES,
    Form,
    LocalIdTranslator,
    MetaIdTranslator,
    NoCopyError,
    new_meta_id,
    text_to_local,
    to_local,
    to_meta,
)
from cheops.backends.http.paths import canonical, folded
from cheops.backends.http.request import target_of
from cheops.backends.http.translation import ResponseIds, buffer_if_small, decompressed, hosts_of
from cheops.config.services import ReplicationConfig, ServiceConfig
from cheops.gateway.interfaces import Response, UpstreamError

FIVE = new_meta_id("site1", b"five" + bytes(6))
LONG = new_meta_id("site1", b"long" + bytes(6))
PART = new_meta_id("site1", b"part" + bytes(6))
NOTE = new_meta_id("site1", b"note" + bytes(6))
UUID = "0b6e1d0e-5f0a-4b7e-9a53-2a4f4ad0c5b1"
INDEX = Index(
    [
        Copy(FIVE, "image", "/images/{id}", "5", is_number=True),
        Copy(LONG, "image", "/images/{id}", UUID),
        Copy(PART, "image", f"/images/{FIVE}/parts/{{id}}", "7", is_number=True),
        Copy(NOTE, "image", "/notes/mine", "mine", is_named=True),
    ]
)


def out(content: Any, path: str = "/images/5", config: ReplicationConfig | None = None) -> Any:
    answering = ResponseIds(INDEX, "image", config or ReplicationConfig(), path)
    return json.loads(to_meta(json.dumps(content).encode(), answering))


def back(content: Any) -> Any:
    return json.loads(to_local(json.dumps(content).encode(), INDEX.local_of, Form.JSON))


def test_what_is_below_a_copy_is_known_until_it_is_gone() -> None:
    index = Index(INDEX.copies.values())
    assert index.below(FIVE) == [PART]
    assert [index.has_below("image", path) for path in ("/images", "/images/5/", "/notes/mine")] == [
        *(True, True, False)
    ]
    index.drop(PART)
    assert (index.below(FIVE), index.has_below("image", "/images/5")) == ([], False)


def test_one_path_has_many_spellings_and_one_place() -> None:
    colon = new_meta_id("site1", b"colon" + bytes(5))
    index = Index([*INDEX.copies.values(), Copy(colon, "image", "/images/{id}", "a:b c")])
    for spelling in ("/images/a:b%20c", "/images/a%3Ab%20c", "/images/%61%3ab%20c", "/x/../images/./a:b%20c"):
        assert canonical(spelling) == "/images/a:b%20c"
        assert index.at("image", spelling) is index.copies[colon]
        target = target_of(index, "image", spelling)
        assert target is not None
        assert (target.meta_id, target.path) == (colon, f"/images/{colon}")
    assert index.path_with_meta_ids("image", "/images/a:b%20c/file") == f"/images/{colon}/file"
    assert [canonical(path) for path in ("/a%2fb", "/../a", "/a/..", "*", "/é")] == [
        *("/a%2Fb", "/a", "/", "*", "/%C3%A9")
    ]
    doubled = target_of(index, "image", "//images//5")
    assert doubled is not None
    assert doubled.meta_id == FIVE
    assert target_of(index, "image", "/notes//mine") is None  # in a name it may mean something


# -- from the service ------------------------------------------------------------------------------------


def test_the_id_of_an_answers_own_item_is_replaced_and_no_other_number() -> None:
    answer = {"id": 5, "size": 5, "owner": {"id": 5}, "tags": [5], "5": "5", "name": "5"}
    assert out(answer) == {**answer, "id": FIVE}


def test_a_list_shows_meta_ids_for_replicants_alone() -> None:
    for listed in ([{"id": 5}, {"id": 6}], {"images": [{"id": 5}, {"id": 6}], "count": 5}):
        found = out(listed, "/images")
        items = found if isinstance(found, list) else found["images"]
        assert [item["id"] for item in items] == [FIVE, 6]


def test_a_list_of_another_collection_has_its_own_numbers() -> None:
    assert out([{"id": 5}], "/servers") == [{"id": 5}]
    assert out([{"id": 7}], "/images/5/parts") == [{"id": PART}]


@pytest.mark.parametrize("path", ["/images/5", "/images/6", f"/images/{UUID}"])
def test_a_list_within_an_item_is_of_a_collection_of_its_own(path: str) -> None:
    """A comment may have the number of an image, and is none."""
    assert out({"id": 1, "comments": [{"id": 5}]}, path) == {"id": 1, "comments": [{"id": 5}]}
    assert out({"id": 1, "images": [{"id": 5}]}, path) == {"id": 1, "images": [{"id": FIVE}]}


def test_a_list_within_an_item_is_looked_up_below_it_and_beside_it() -> None:
    assert out({"id": 5, "parts": [{"id": 7}]}) == {"id": FIVE, "parts": [{"id": PART}]}
    assert out({"id": 9, "images": [{"id": 5}]}, "/servers/9") == {"id": 9, "images": [{"id": FIVE}]}
    config = ReplicationConfig(items=(("/servers/*/pictures", "/images/{id}"),))
    assert out({"pictures": [{"id": 5}]}, "/servers/9", config) == {"pictures": [{"id": FIVE}]}


def test_a_thing_within_another_is_of_the_collection_that_is_named_like_it() -> None:
    server = {"id": 5, "image": {"id": 5, "name": "x"}, "owner": {"id": 5}}
    assert out(server, "/servers/5") == {**server, "image": {"id": FIVE, "name": "x"}}
    listed = {"servers": [server]}
    assert out(listed, "/servers") == {"servers": [{**server, "image": {"id": FIVE, "name": "x"}}]}
    assert out([{"boot": {"image": {"id": 5}}}], "/servers") == [{"boot": {"image": {"id": FIVE}}}]
    config = ReplicationConfig(refs=(("picture", "/images"), ("pictures", "/images")))
    told = {"picture": {"id": 5}, "pictures": [{"id": 5}, {"id": 6}]}
    expected = {"picture": {"id": FIVE}, "pictures": [{"id": FIVE}, {"id": 6}]}
    assert out([told], "/servers", config) == [expected]


def test_lists_within_lists_and_lists_of_several_kinds() -> None:
    assert out([{"id": 5, "images": [{"id": 5}]}], "/servers") == [{"id": 5, "images": [{"id": FIVE}]}]
    everything = {"servers": [{"id": 5}], "images": [{"id": 5}]}
    assert out(everything, "/db") == {"servers": [{"id": 5}], "images": [{"id": FIVE}]}
    assert out(everything, "/servers") == {"servers": [{"id": 5}], "images": [{"id": FIVE}]}


def test_urls_of_other_hosts_are_left_alone() -> None:
    """Their paths mean something else; sent back by the client, they would be another at every site."""
    hosts = hosts_of(ServiceConfig("image", "http://127.0.0.1:9292"), "api.example:80")
    answering = ResponseIds(INDEX, "image", ReplicationConfig(), "/images/5", hosts)
    for ours in ("http://127.0.0.1:9292", "http://API.example", "//image", ""):
        assert answering.in_text(f"{ours}/images/5", ("link",)) == f"{ours}/images/{FIVE}"
    for other in ("https://cdn.example", "//cdn.example", "http://[::1"):
        assert answering.in_text(f"{other}/images/5", ("link",)) is None
        assert answering.in_header(f"{other}/images/5") == f"{other}/images/5"
        # an id that is long enough can be nothing else
        assert answering.in_text(f"{other}/images/{UUID}", ("link",)) == f"{other}/images/{LONG}"


def test_a_search_in_a_collection_may_call_its_list_as_it_likes() -> None:
    assert out({"results": [{"id": 5}]}, "/images/search") == {"results": [{"id": FIVE}]}


def test_members_that_refer_to_a_collection_are_configured() -> None:
    config = ReplicationConfig(refs=(("image_id", "/images"),))
    answer = {"id": 9, "image_id": 5, "image_ids": [5], "other_id": 5}
    assert out(answer, "/servers/9", config) == {**answer, "image_id": FIVE}
    several = ReplicationConfig(refs=(("image_ids", "/images"),))
    assert out(answer, "/servers/9", several) == {**answer, "image_ids": [FIVE]}


def test_an_id_below_a_name_is_found_where_the_configuration_says() -> None:
    config = ReplicationConfig(id=("image", "id"))
    assert out({"image": {"id": 5}, "id": 5}, config=config) == {"image": {"id": FIVE}, "id": 5}
    assert out({"images": [{"id": 5}]}, "/images", config) == {"images": [{"id": FIVE}]}


def test_a_long_id_is_known_wherever_it_stands() -> None:
    answer = {"image": UUID, "all": [UUID], "deep": {"x": UUID}, "not": f"{UUID}x"}
    assert out(answer, "/anything") == {"image": LONG, "all": [LONG], "deep": {"x": LONG}, "not": f"{UUID}x"}


ROOM = new_meta_id("site1", b"room" + bytes(6))
CHOSEN = new_meta_id("site1", b"chos" + bytes(6))


def test_the_name_of_a_member_may_be_an_id() -> None:
    index = Index([Copy(LONG, "chat", "/rooms/{id}", UUID), Copy(ROOM, "chat", "/rooms/{id}", "!Ab:c")])
    ids = ResponseIds(index, "chat", ReplicationConfig(refs=(("join", "/rooms"),)), "/sync")
    body = b'{"rooms": {"join" : {"!Ab:c" : {"!Ab:c": 1}}, "leave": {"!Ab:c": {}}}, "%b":2}' % UUID.encode()
    expected = b'{"rooms": {"join" : {"%b" : {"!Ab:c": 1}}, "leave": {"!Ab:c": {}}}, "%b":2}'
    assert to_meta(body, ids) == expected % (ROOM.encode(), LONG.encode())  # where `refs` says so, or a UUID


@pytest.mark.parametrize("chosen", ["web-server-2026", "2026-11-17-notes", "!IbmQgFVlsJgU4Yze"])
def test_a_long_text_that_somebody_may_have_chosen_is_an_id_only_in_its_place(chosen: str) -> None:
    index = Index([Copy(CHOSEN, "image", "/images/{id}", chosen)])
    ids = ResponseIds(index, "image", ReplicationConfig(), "/images")
    answer = {"images": [{"id": chosen, "label": chosen, "notes": {chosen: 1}}]}
    expected = {"images": [{"id": CHOSEN, "label": chosen, "notes": {chosen: 1}}]}
    assert json.loads(to_meta(json.dumps(answer).encode(), ids)) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("/images/5", f"/images/{FIVE}"),
        ("/images/5/file?x=5#5", f"/images/{FIVE}/file?x=5#5"),
        ("http://127.0.0.1:9292/images/5", f"http://127.0.0.1:9292/images/{FIVE}"),
        ("http://h/api/v2/images/5/parts/7", f"http://h/api/v2/images/{FIVE}/parts/{PART}"),
        (f"/other/{UUID}", f"/other/{LONG}"),
        ("/images/55", "/images/55"),
        ("/servers/5", "/servers/5"),
        ("/notes/mine", "/notes/mine"),
        ("5 of /images/5", "5 of /images/5"),  # a text for people
        (f"see /images/{UUID} and more", f"see /images/{UUID} and more"),
        ("http://5", "http://5"),
    ],
)
def test_urls_and_paths_lead_to_replicants(text: str, expected: str) -> None:
    assert out({"link": text}) == {"link": expected}
    escaped = json.dumps({"link": text}).replace("/", "\\/").encode()  # as PHP writes it
    assert json.loads(to_meta(escaped, ResponseIds(INDEX, "image", ReplicationConfig(), "/"))) == {"link": expected}


def test_headers_too() -> None:
    answering = ResponseIds(INDEX, "image", ReplicationConfig(), "/images")
    assert answering.in_header("/images/5") == f"/images/{FIVE}"
    link = '</images/5>; rel="next", <http://h/images/6>; rel="last"'
    assert answering.in_header(link) == link.replace("/images/5", f"/images/{FIVE}")


def test_spelling_stays() -> None:
    raw = b'{ "a" : 1.50 , "big":12345678901234567890123 ,\n"id" :5, "u": "\\u00e9" }'
    translated = to_meta(raw, ResponseIds(INDEX, "image", ReplicationConfig(), "/images/5"))
    assert translated == raw.replace(b":5", b':"' + FIVE.encode() + b'"')


def test_what_is_no_json_passes_unharmed() -> None:
    for raw in (b"", b"<html>&quot;5</html>", b'{"open', b"\\", b'"' * 7, b"nan" * 9000, b"{" * 900):
        assert to_meta(raw, ResponseIds(INDEX, "image", ReplicationConfig(), "/images")) == raw


# -- to the service --------------------------------------------------------------------------------------


def test_a_meta_id_becomes_the_local_id_as_the_service_writes_it() -> None:
    body = {"image": FIVE, "url": f"/images/{FIVE}/file", "all": [FIVE, LONG], FIVE: FIVE.upper()}
    assert back(body) == {"image": 5, "url": "/images/5/file", "all": [5, UUID], "5": 5}


def test_paths_queries_and_headers() -> None:
    assert text_to_local(f"/images/{FIVE}?x={LONG}", INDEX.local_of, Form.URL) == f"/images/5?x={UUID}"
    assert to_local(f"a=1&image={FIVE}".encode(), INDEX.local_of, Form.URL) == b"a=1&image=5"


def test_an_id_that_has_no_copy_here_is_refused_by_name() -> None:
    unknown = new_meta_id("site2", bytes(10))
    with pytest.raises(NoCopyError, match=unknown):
        back({"image": unknown})


# -- there and back, in pieces of any size ---------------------------------------------------------------

SCALARS = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False, allow_infinity=False), st.text()
)
SPOKEN = st.sampled_from([UUID, f"/images/{UUID}", f"http://h/x/images/{UUID}/file", "/images/5", "x" * 9000])
JSON = st.recursive(
    st.one_of(SCALARS, SPOKEN),
    lambda inner: st.one_of(st.lists(inner), st.dictionaries(st.text(), inner)),
    max_leaves=20,
)


def pieces(raw: bytes, cuts: list[int]) -> list[bytes]:
    places = sorted({min(cut, len(raw)) for cut in cuts} | {0, len(raw)})
    return [raw[start:stop] for start, stop in pairwise(places)]


@given(JSON)
def test_there_and_back_gives_what_was_sent(content: Any) -> None:
    assert back(out(content, "/anything")) == content


@given(JSON, st.lists(st.integers(0, 3000), max_size=8), st.booleans())
def test_pieces_make_no_difference(content: Any, cuts: list[int], indented: bool) -> None:
    raw = json.dumps(content, indent=2 if indented else None).encode()
    answering = ResponseIds(INDEX, "image", ReplicationConfig(), "/images/5")
    whole = to_meta(raw, answering)
    to_clients = MetaIdTranslator(answering)
    assert b"".join([*map(to_clients.feed, pieces(raw, cuts)), to_clients.finish()]) == whole
    to_service = LocalIdTranslator(INDEX.local_of, Form.JSON)
    assert b"".join([*map(to_service.feed, pieces(whole, cuts)), to_service.finish()]) == to_local(
        whole, INDEX.local_of, Form.JSON
    )


def test_long_strings_and_long_bodies_cost_no_memory() -> None:
    translating = MetaIdTranslator(ResponseIds(INDEX, "image", ReplicationConfig(), "/images/5"))
    given_bytes = sum(map(len, map(translating.feed, [b'{"x": "', *[b"y" * 65536] * 50, b'", "id": 5}'])))
    assert len(translating._held) <= MAX_ID_BYTES
    assert given_bytes + len(translating.finish()) == 50 * 65536 + len('{"x": "", "id": "') + 36 + 2


# -- what comes packed, though nobody asked for it ---------------------------------------------------------


def opened(packed: bytes) -> tuple[bool, bytes]:
    """Whether it was held as a whole, and what it was."""

    async def do() -> tuple[bool, bytes]:
        answer = Response(200, (("Content-Encoding", "gzip"),), packed)
        body = await buffer_if_small(decompressed(answer), len(packed))
        is_held = isinstance(body, bytes)
        return is_held, body if isinstance(body, bytes) else b"".join([piece async for piece in body])

    return asyncio.run(do())


def test_a_packed_answer_is_opened_whole_and_never_held_whole() -> None:
    assert opened(gzip.compress(b"one, ") + gzip.compress(b"two")) == (True, b"one, two")
    assert opened(b"") == (True, b"")
    assert opened(gzip.compress(bytes(20_000_000))) == (False, bytes(20_000_000))


def test_a_packed_answer_that_cannot_be_opened_is_not_shown_in_part() -> None:
    for packed in (gzip.compress(b"cut off" * 100)[:-9], b"this is no gzip"):
        with pytest.raises(UpstreamError, match="cannot be read"):
            opened(packed)


# -- which copies there are ------------------------------------------------------------------------------


def test_an_id_that_the_service_uses_again_belongs_to_the_new_one() -> None:
    index = Index([Copy(FIVE, "image", "/images/{id}", "5")])
    index.add(Copy(LONG, "image", "/images/{id}", "5"))
    assert index.at("image", "/images/5") == Copy(LONG, "image", "/images/{id}", "5")
    assert index.local_of(FIVE) is None
    index.drop(LONG)
    assert not len(index)
    assert not index.has_service("image")


def test_two_services_may_use_the_same_id() -> None:
    index = Index([Copy(FIVE, "image", "/x/{id}", UUID), Copy(LONG, "compute", "/x/{id}", UUID)])
    assert index.anywhere(UUID) is None
    assert index.path_with_meta_ids("compute", f"/x/{UUID}") == f"/x/{LONG}"


# -- paths that services may take for one --------------------------------------------------------------------------


def test_paths_that_services_may_take_for_one() -> None:
    for path in ("/a/b", "/a//b", "/a%2Fb", "/a/b;v=1", "/a;x/b", "/a%252Fb", "/a%5Cb", "/a/b/", "//a/x%2F..%2Fb"):
        assert folded(canonical(path)) == "/a/b"
    assert folded("/a/B") == "/a/B"
    assert folded("/a%25b") == "/a%25b"


def test_copies_whose_paths_services_may_take_for_one() -> None:
    index = Index([Copy("one", "image", "/notes/a", "a", is_named=True)])
    assert index.alike("image", "/notes/a") == ""
    assert index.alike("image", "/notes/a/part") == ""
    assert index.alike("image", "/notes%2Fa") == "one"
    assert index.alike("image", "/notes//a/part") == "one"
    assert index.alike("other", "/notes//a") == ""
    index.add(Copy("two", "image", "/notes/b;v=1", "b", is_named=True))
    assert index.alike("image", "/notes/b") == "two"
    assert index.alike("image", "/notes/b;v=1") == ""
    assert index.alike("image", "/notes/b;v=2") == "two"
    index.drop("two")
    assert index.alike("image", "/notes/b") == ""

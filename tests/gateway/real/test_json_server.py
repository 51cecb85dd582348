"""json-server, a REST service from npm, through the gateway: unmodified, and it never hears of Cheops.

It hands out numbers as ids, each instance by itself, and says of one resource that it belongs to another by
such a number (`postId`): so nothing but the gateway can make the copies of three sites one resource.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cheops.backends.http.ids import is_meta_id
from tests.gateway.real.sites import EVERYWHERE, SITES, Headers, RealSites, essence, running
from tests.support.command import run_here
from tests.support.npm import installed

SOURCE = Path(__file__).parent / "json_server"
JSON = {"Content-Type": "application/json"}
# What each instance has before anything begins, so that each gives other ids than the others.
SEEDS = {"site1": 41, "site2": 5, "site3": 1000}
# `postId` holds ids of posts; comments are also listed, and made, below the post that they belong to.
REPLICATION = {"refs": {"postId": "/posts"}, "items": {"/posts/*/comments": "/comments/{id}"}}


@pytest.fixture(scope="session")
def program(pytestconfig: pytest.Config) -> Path:
    """The command line of the pinned version."""
    return installed(pytestconfig, SOURCE, "json-server") / "json-server" / "lib" / "cli" / "bin.js"


@pytest.fixture(scope="module")
def sites(program: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealSites]:
    def starting(folder: Path, port: int) -> list[str]:
        last = SEEDS.get(folder.parent.name, SEEDS["site1"])
        seed = {
            "posts": [{"id": last, "title": "own", "views": 1}],
            "comments": [{"id": last * 2, "body": "own", "postId": last}],
            "notes": [],
        }
        (folder / "db.json").write_text(json.dumps(seed))
        return ["node", str(program), "--host", "127.0.0.1", "--port", str(port), "--quiet", "db.json"]

    base = tmp_path_factory.mktemp("json-server") / "rig"
    with running(RealSites(base, "json", starting, **REPLICATION)) as made:
        yield made


def packed(content: Any) -> bytes:
    return json.dumps(content).encode()


def own_ids(sites: RealSites, collection: str, **wanted: Any) -> dict[str, Any]:
    """The ids that the services themselves gave to what has these members."""
    query = "&".join(f"{name}={value}" for name, value in wanted.items())
    found = {site: sites.direct(site, "GET", f"/{collection}?{query}").json for site in SITES}
    return {site: items[0]["id"] for site, items in found.items() if items}


def new_post(sites: RealSites, title: str, site: str = "site1") -> str:
    body = packed({"title": title, "views": 0})
    made = sites.through(site, "POST", "/posts", body, JSON, EVERYWHERE)
    assert made.status == 201, made.body
    meta_id: str = made.json["id"]
    return meta_id


# -- without a scope ---------------------------------------------------------------------------------------

# The documented calls of json-server, in this order; answers must not depend on who stands in between.
HOST = {"Host": "api.example:8080"}  # so that links in answers are the same
CALLS: list[tuple[str, str, Any, Headers]] = [
    ("GET", "/db", None, {}),
    ("GET", "/posts", None, {}),
    ("GET", "/posts/41", None, {}),
    ("GET", "/posts/7", None, {}),
    ("HEAD", "/posts/41", None, {}),
    ("OPTIONS", "/posts", None, {"Origin": "http://ui.example", "Access-Control-Request-Method": "PUT"}),
    ("POST", "/posts", {"title": "a", "views": 3}, JSON),
    ("POST", "/posts", {"title": "b", "views": 2}, JSON),
    ("POST", "/posts", {"title": "c", "views": 1, "tags": ["ä", 1.50]}, JSON),
    ("POST", "/posts", b"title=form&views=9", {"Content-Type": "application/x-www-form-urlencoded"}),
    ("POST", "/posts", b"{not json", JSON),
    ("POST", "/posts", {"id": 42, "title": "taken"}, JSON),
    ("PUT", "/posts/42", {"title": "replaced"}, JSON),
    ("PATCH", "/posts/43", {"views": 20}, JSON),
    ("PATCH", "/posts/4711", {"views": 20}, JSON),
    ("GET", "/posts?_sort=views&_order=desc", None, {}),
    ("GET", "/posts?_page=1&_limit=2", None, {}),
    ("GET", "/posts?views_gte=3&title_like=a", None, {}),
    ("GET", "/posts?q=form", None, {}),
    ("GET", "/posts/41?_embed=comments", None, {}),
    ("GET", "/comments?_expand=post", None, {}),
    ("GET", "/posts/41/comments", None, {}),
    ("POST", "/posts/41/comments", {"body": "nested"}, JSON),
    ("POST", "/notes", {"text": "x" * 20_000}, JSON),
    ("GET", "/notes/1", None, {"Accept-Encoding": "gzip"}),
    ("GET", "/posts?callback=show", None, {}),
    ("DELETE", "/posts/42", None, {}),
    ("DELETE", "/posts/42", None, {}),
    ("GET", "/db", None, {}),
    ("TRACE", "/posts", None, {}),
]


def test_without_a_scope_clients_see_no_difference(sites: RealSites) -> None:
    for method, target, content, headers in CALLS:
        body = content if isinstance(content, bytes) or content is None else packed(content)
        direct = sites.reference(method, target, body, HOST | headers)
        gated = sites.through("site1", method, target, body, HOST | headers)
        assert essence(gated) == essence(direct), (method, target)
        assert gated.site == "site1"


def test_an_unchanged_resource_is_not_sent_again(sites: RealSites) -> None:
    tag = sites.through("site1", "GET", "/posts/41").headers["ETag"]
    again = sites.through("site1", "GET", "/posts/41", headers={"If-None-Match": tag})
    assert (again.status, again.body) == (304, b"")


# -- sharing -----------------------------------------------------------------------------------------------


def test_a_client_of_site1_works_with_the_service_of_site2(sites: RealSites) -> None:
    made = sites.through("site1", "POST", "/posts", packed({"title": "there"}), HOST | JSON, "site2")
    id_ = made.json["id"]
    assert (made.status, made.site) == (201, "site2")
    assert made.headers["Location"] == f"http://api.example:8080/posts/{id_}"
    assert own_ids(sites, "posts", title="there") == {"site2": id_}
    path = f"/posts/{id_}"
    changed = sites.through("site1", "PATCH", path, packed({"views": 5}), JSON, "site2")
    assert (changed.status, changed.json) == (200, {"title": "there", "id": id_, "views": 5})
    listed = sites.through("site1", "GET", "/posts?title=there", scope="site2")
    assert [item["id"] for item in listed.json] == [id_]
    assert sites.through("site1", "GET", "/posts?title=there").json == []
    assert sites.through("site1", "DELETE", path, scope="site2").status == 200
    assert own_ids(sites, "posts", title="there") == {}


# -- replication -------------------------------------------------------------------------------------------


def test_a_replicated_post_is_one_resource_at_all_sites(sites: RealSites) -> None:
    made = sites.through("site1", "POST", "/posts", packed({"title": "one", "views": 0}), JSON, EVERYWHERE)
    meta_id = made.json["id"]
    assert made.status == 201
    assert is_meta_id(meta_id)
    assert made.headers["Location"].endswith(f"/posts/{meta_id}")
    own = own_ids(sites, "posts", title="one")
    assert (len(own), len(set(own.values()))) == (3, 3)  # every instance gave another number

    path = f"/posts/{meta_id}"
    for site in SITES:
        read = sites.through(site, "GET", path)
        assert (read.status, read.json) == (200, {"title": "one", "views": 0, "id": meta_id})
    patched = sites.through("site2", "PATCH", path, packed({"views": 7}), JSON)
    assert (patched.status, patched.json) == (200, {"title": "one", "views": 7, "id": meta_id})
    put = sites.through("site3", "PUT", path, packed({"title": "two"}), JSON)
    assert (put.status, put.json) == (200, {"title": "two", "id": meta_id})
    assert own_ids(sites, "posts", title="two") == own

    for site in SITES:
        listed = sites.through(site, "GET", "/posts").json
        assert {"title": "two", "id": meta_id} in listed
        assert own[site] not in [item["id"] for item in listed]  # local ids are hidden ...
        assert SEEDS[site] in [item["id"] for item in listed]  # ... but for what is this site's alone
        assert [item["id"] for item in sites.through(site, "GET", f"/posts?id={meta_id}").json] == [meta_id]

    assert sites.through("site2", "DELETE", path).status == 200
    assert own_ids(sites, "posts", title="two") == {}
    assert [sites.through(site, "GET", path).status for site in SITES] == [404] * 3


def test_a_local_id_stands_for_the_whole_resource(sites: RealSites) -> None:
    meta_id = new_post(sites, "numbered")
    own = own_ids(sites, "posts", title="numbered")
    changed = sites.through("site3", "PATCH", f"/posts/{own['site3']}", packed({"views": 3}), JSON)
    assert changed.json == {"title": "numbered", "views": 3, "id": meta_id}
    assert own_ids(sites, "posts", title="numbered", views=3) == own


def test_resources_that_refer_to_each_other_do_so_at_every_site(sites: RealSites) -> None:
    post = new_post(sites, "discussed")
    own_posts = own_ids(sites, "posts", title="discussed")
    body = packed({"body": "yes", "postId": post})
    made = sites.through("site2", "POST", "/comments", body, JSON, EVERYWHERE)
    assert made.status == 201, made.body
    comment = made.json["id"]
    assert made.json == {"body": "yes", "postId": post, "id": comment}
    for site in SITES:
        (kept,) = sites.direct(site, "GET", "/comments?body=yes").json
        assert kept["postId"] == own_posts[site]  # a number, and this site's own
        read = {"body": "yes", "postId": post, "id": comment}
        assert sites.through(site, "GET", f"/comments/{comment}").json == read
        assert sites.through(site, "GET", f"/comments?postId={post}").json == [read]
        assert sites.through(site, "GET", f"/posts/{post}/comments").json == [read]


def test_what_is_made_below_a_replicated_post_is_made_at_all_its_sites(sites: RealSites) -> None:
    post = new_post(sites, "parent")
    own_posts = own_ids(sites, "posts", title="parent")
    made = sites.through("site3", "POST", f"/posts/{post}/comments", packed({"body": "below"}), JSON)
    assert (made.status, made.json["postId"]) == (201, post), made.body
    comment = made.json["id"]
    for site in SITES:
        (kept,) = sites.direct(site, "GET", "/comments?body=below").json
        assert str(kept["postId"]) == str(own_posts[site])
        assert sites.through(site, "GET", f"/comments/{comment}").json["body"] == "below"


def test_ids_within_an_answer_are_those_of_their_own_collection(sites: RealSites) -> None:
    """A comment may have the number of a replicated post, and is something else all the same."""
    post = new_post(sites, "embedding")
    own = own_ids(sites, "posts", title="embedding")["site2"]
    sites.direct("site2", "POST", "/comments", packed({"id": own, "body": "same number", "postId": own}), JSON)
    read = sites.through("site2", "GET", f"/posts/{post}?_embed=comments").json
    assert read["id"] == post
    assert read["comments"] == [{"id": own, "body": "same number", "postId": post}]


def test_what_is_embedded_shows_no_local_id(sites: RealSites) -> None:
    """json-server's relations: a post within its comment, comments within each post of a list, and all at once."""
    post = new_post(sites, "related")
    made = sites.through("site1", "POST", "/comments", packed({"body": "rel", "postId": post}), JSON, EVERYWHERE)
    comment = made.json["id"]
    own = {"id": comment, "body": "rel", "postId": post}
    for site in SITES:
        expanded = sites.through(site, "GET", f"/comments/{comment}?_expand=post").json
        assert expanded == {**own, "post": {"id": post, "title": "related", "views": 0}}
        assert sites.through(site, "GET", "/comments?_expand=post&body=rel").json == [expanded]
        assert sites.through(site, "GET", f"/posts/{post}/comments?_expand=post").json == [expanded]
        (listed,) = sites.through(site, "GET", "/posts?_embed=comments&title=related").json
        assert listed == {"id": post, "title": "related", "views": 0, "comments": [own]}
        everything = sites.through(site, "GET", "/db").json
        assert own in everything["comments"]
        assert post in [one["id"] for one in everything["posts"]]
        # what is this site's alone has its own number, in the same answers
        assert {"id": SEEDS[site] * 2, "body": "own", "postId": SEEDS[site]} in everything["comments"]


def test_a_number_that_is_given_again_is_not_taken_for_the_replicant_that_had_it(sites: RealSites) -> None:
    """json-server deletes the comments of a post with it, and gives their numbers to the next ones."""
    post = new_post(sites, "short-lived")
    body = packed({"body": "gone with it", "postId": post})
    comment = sites.through("site1", "POST", "/comments", body, JSON, EVERYWHERE).json["id"]
    number = own_ids(sites, "comments", body="gone+with+it")["site2"]
    assert sites.through("site2", "DELETE", f"/posts/{post}").status == 200
    made = sites.through("site2", "POST", "/comments", packed({"body": "new", "postId": SEEDS["site2"]}), JSON)
    assert made.json == {"id": number, "body": "new", "postId": SEEDS["site2"]}
    assert made.headers["Location"].endswith(f"/comments/{number}")
    assert sites.through("site2", "GET", f"/comments/{number}").json == made.json
    changed = sites.through("site2", "PATCH", f"/comments/{number}", packed({"body": "newer"}), JSON)
    assert (changed.status, "Cheops-Operation" in changed.headers) == (200, False)
    assert [sites.through(site, "GET", f"/comments/{comment}").status for site in SITES] == [404] * 3


def test_what_is_not_replicated_is_answered_as_before(sites: RealSites) -> None:
    new_post(sites, "beside")
    for target in ("/comments/82", "/notes", "/posts/7", "/posts/4300", "/posts?title=own"):
        direct, gated = sites.direct("site1", "GET", target), sites.through("site1", "GET", target)
        assert (gated.status, gated.json) == (direct.status, direct.json), target


def test_a_comment_that_was_changed_or_lost_behind_the_gateway_is_repaired(sites: RealSites) -> None:
    """Its id, and that of its post, are other numbers at each site."""
    post = new_post(sites, "repaired")
    body = packed({"body": "mendable", "postId": post})
    comment = sites.through("site1", "POST", "/comments", body, JSON | {"Cheops-Wait": "all"}, EVERYWHERE).json["id"]
    ids = own_ids(sites, "comments", body="mendable")
    assert len(ids) == 3
    assert sites.direct("site2", "DELETE", f"/comments/{ids['site2']}").status == 200
    assert sites.direct("site3", "PATCH", f"/comments/{ids['site3']}", packed({"body": "torn"}), JSON).status == 200
    done = run_here("repair", comment, "--from", "site1", "--yes", "--url", sites.rig.url("site3"))
    assert done.code == 0, done
    posts, comments = own_ids(sites, "posts", title="repaired"), own_ids(sites, "comments", body="mendable")
    for site in SITES:
        found = sites.direct(site, "GET", f"/comments/{comments[site]}").json
        assert found == {"body": "mendable", "postId": posts[site], "id": comments[site]}
    assert run_here("verify", comment, "--url", sites.rig.url("site1")).code == 0
    assert run_here("wait", comment, "--url", sites.rig.url("site1")).code == 0

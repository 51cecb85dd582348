"""The figures of the second paper ("Geo-distribute cloud applications at the edge", 2021), each with real sites.

What is local is done with the site cut off from all others: it needs nobody. Each site's image has a content
of its own, so that a server's checksum tells whose image it was booted from.
"""

import pytest

from cheops.backends.http.ids import is_meta_id
from tests.agent.rig import until
from tests.gateway.figures.cloud import BALANCED, Cloud, digest

PAIR = "{image: site1 & site2}"


@pytest.fixture
def debian(cloud: Cloud, request: pytest.FixtureRequest) -> dict[str, str]:
    """An image of the same name at site1 and at site2, of different content; gives the ids."""
    name = request.node.name
    return {site: cloud.new_image(site, name, content(site)) for site in ("site1", "site2")}


def content(site: str) -> bytes:
    return f"the debian of {site}".encode() * 1000


def booted_from(cloud: Cloud, site: str, server: str) -> str:
    found: str = cloud.servers(site)[server]["image_sha256"]
    return found


@pytest.mark.parametrize("scope", [None, "{compute: site1, image: site1}"])
def test_figure_6_a_scope_with_one_location_stays_there(
    scope: str | None, cloud: Cloud, debian: dict[str, str]
) -> None:
    """Figure 6, and Cmd. 1 and 2 of section 4: `• s:App1,t:App1 → s.e → t.h` is resolved to s1 and t1 alone, and
    without a scope it is the same; so it is satisfied while nobody else can be reached."""
    cloud.wan.isolate("site1")
    try:
        name = f"local-{scope}"
        made = cloud.boot("site1", name, debian["site1"], scope=scope)
        assert (made.status, made.site) == (201, "site1"), made.body
        assert booted_from(cloud, "site1", name) == digest(content("site1"))
    finally:
        cloud.wan.heal()
        cloud.all_see_all()


def test_figure_7_instances_of_a_service_are_interchangeable(cloud: Cloud) -> None:
    """Figure 7: a load balancer between two instances of t inside App3 changes nothing for s, nor for the
    gateway, nor for another site that shares the service; from one execution to the next another one answers."""
    image = cloud.new_image(BALANCED, "balanced", content(BALANCED))
    before = [cloud.reads(BALANCED, log) for log in ("image1", "image2")]
    shared = "{compute: site1, image: site3}"
    for number, (site, scope) in enumerate(((BALANCED, None), ("site1", shared))):
        made = cloud.boot(site, f"balanced-{number}", image, scope=scope)
        assert (made.status, made.json["image_sha256"]) == (201, digest(content(BALANCED))), made.body
    after = [cloud.reads(BALANCED, log) for log in ("image1", "image2")]
    # A boot asks for the description and for the file, so each instance had its turn in both.
    assert [late - early for early, late in zip(before, after, strict=True)] == [2, 2]


def test_figure_8_resources_are_shared_by_forwarding(cloud: Cloud, debian: dict[str, str]) -> None:
    """Figure 8: in `s.e → t.h` with s:App1, t:App2, s1 is composed with t2 rather than with its own t1."""
    reads = cloud.reads("site1")
    made = cloud.boot("site1", "shared", debian["site2"], scope="{compute: site1, image: site2}")
    assert (made.status, made.site) == (201, "site1"), made.body
    assert booted_from(cloud, "site1", "shared") == digest(content("site2"))
    assert cloud.reads("site1") == reads  # t1 was not asked
    assert debian["site2"] not in [image["id"] for image in cloud.images("site1").values()]  # nor given anything
    # The same request without the scope does not find the image: the scope alone makes the difference.
    assert cloud.boot("site1", "unshared", debian["site2"]).status == 400


def test_figure_9_a_resource_is_replicated_by_forwarding(cloud: Cloud) -> None:
    """Figure 9: `t:App1&App2` gives {metaId: [App1: localId, App2: localId]}, kept at both sites; clients get the
    meta-id, local ids are hidden, and what is done to one replica later is done to all."""
    made = cloud.call("site1", "POST", "/images", {"name": "figure9"}, scope=PAIR, Cheops_Wait="all")
    meta_id = made.json["id"]
    assert (made.status, is_meta_id(meta_id)) == (201, True)
    local = {site: cloud.images(site)["figure9"]["id"] for site in ("site1", "site2")}
    assert len({meta_id, *local.values()}) == 3
    mapping = {site: cloud.replicant(site, meta_id) for site in local}
    assert {site: found["local_id"] for site, found in mapping.items()} == local
    assert {tuple(found["sites"]) for found in mapping.values()} == {("site1", "site2")}
    assert "figure9" not in cloud.images("site3")  # only the involved sites hear of it
    for site in local:
        shown = {image["name"]: image["id"] for image in cloud.call(site, "GET", "/images").json["images"]}
        assert shown["figure9"] == meta_id
    changed = cloud.call("site2", "PATCH", f"/images/{meta_id}", {"os": "linux"}, Cheops_Wait="all")
    assert (changed.status, changed.json["id"]) == (200, meta_id)
    assert [cloud.images(site)["figure9"]["os"] for site in local] == ["linux", "linux"]
    assert cloud.call("site1", "DELETE", f"/images/{meta_id}", Cheops_Wait="all").status == 204
    assert not [site for site in local if "figure9" in cloud.images(site)]


def test_figure_10_otherwise_and_around(cloud: Cloud, debian: dict[str, str]) -> None:
    """Figure 10: `site1 ; site2` falls back on site2 when site1 cannot be reached, and around(site1, 60ms) is
    the same with the sites that are near enough."""
    path = f"/images/{debian['site2']}"
    around = "{image: around(site1, 60ms)}"  # site2 is at 10 ms, the others at 80 or more

    def tried() -> list[str]:
        told = cloud.call("site3", "GET", path, scope=around, Cheops_Dry_Run="1").json
        return [one["site"] for one in told["sites"]]

    until(lambda: tried() == ["site1", "site2"], "for the measured distances to be those of the bed")
    cloud.wan.isolate("site1")
    try:
        for scope in ("{image: site1 ; site2}", around):
            answer = cloud.call("site3", "GET", path, scope=scope)
            assert (answer.status, answer.site, answer.json["id"]) == (200, "site2", debian["site2"]), answer.body
    finally:
        cloud.wan.heal()
        cloud.all_see_all()


def test_figure_11_a_server_at_dc_1_with_an_image_of_dc_2(cloud: Cloud, debian: dict[str, str]) -> None:
    """Figure 11, Cmd. 3: asked of a third site, step 1b forwards the request to compute at DC 1, and step 2b
    its download to image at DC 2. Compute forwards no scope: the gateway finds it by X-Request-Id."""
    scope = "{compute: site1, image: site2}"
    made = cloud.boot("site3", "figure11", debian["site2"], scope=scope)
    assert (made.status, made.site) == (201, "site1"), made.body
    assert booted_from(cloud, "site1", "figure11") == digest(content("site2"))
    assert "figure11" not in cloud.servers("site3")


def test_section_4_a_replicated_image_boots_on_both_sides_of_a_partition(cloud: Cloud) -> None:
    """Cmd. 4: after `image create --scope { image: DC 1 & DC 2 }` each DC boots from its own replica, which needs
    no network; and the servers are of the same image."""
    image = cloud.new_image("site1", "cmd4", content("both"), scope=PAIR)
    cloud.wan.cut("site1", "site2")
    try:
        for site in ("site1", "site2"):
            made = cloud.boot(site, "cmd4", image)
            assert (made.status, made.json["image"]) == (201, image), made.body
            assert booted_from(cloud, site, "cmd4") == digest(content("both"))
    finally:
        cloud.wan.heal()
        cloud.all_see_all()


def test_section_4_locally_scoped_requests_do_not_wait_for_dead_sites(cloud: Cloud, debian: dict[str, str]) -> None:
    """Section 4: a request that mixes locations is refused when one of them is gone, and says so; it goes
    through again as soon as the site is back."""
    scope = "{compute: site1, image: site2}"
    cloud.wan.cut("site1", "site2")
    try:
        refused = cloud.boot("site1", "mixed", debian["site2"], scope=scope)
        assert refused.status in (400, 503), refused.body
    finally:
        cloud.wan.heal()
        cloud.all_see_all()
    until(lambda: cloud.boot("site1", "mixed", debian["site2"], scope=scope).status == 201, "for site2")

"""Bodies: streamed, kept once per site while they are needed, resumed after a cut, and then gone.

`make soak` sends 2 GB (CHEOPS_TEST_BODY_MB); here it is less.
"""

import hashlib
import http.client
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from cheops.peers.frames import Opening, encode_payload
from cheops.peers.requests import RequestKind
from tests.agent.rig import until
from tests.gateway.replicas.conftest import MakeSites
from tests.gateway.replicas.sites import EVERYWHERE, SITES, Sites
from tests.gateway.replicas.taps import Cut, tapped

MEGABYTES = int(os.environ.get("CHEOPS_TEST_BODY_MB", "64"))
PATIENCE_S = 60.0 + MEGABYTES
MOST_GROWTH_MB = 48  # whatever the size of the body
_BLOCK = bytes(range(256)) * 4096


def content(megabytes: int) -> Iterator[bytes]:
    for number in range(megabytes):
        yield number.to_bytes(8, "big") + _BLOCK[8:]


def hash_of(megabytes: int) -> str:
    digest = hashlib.sha256()
    for block in content(megabytes):
        digest.update(block)
    return digest.hexdigest()


def upload(sites: Sites, site: str, target: str, megabytes: int, **headers: str) -> http.client.HTTPResponse:
    connection = http.client.HTTPConnection(*sites.address(site), timeout=PATIENCE_S)
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    named |= {"Content-Type": "application/octet-stream", "Content-Length": str(megabytes << 20)}
    connection.request("PUT", target, content(megabytes), named)
    answer = connection.getresponse()
    answer.read()
    connection.close()
    return answer


def files(sites: Sites, site: str) -> list[Path]:
    return sorted((sites.rig.folder(site) / "data" / "files").iterdir())


def peak_mb(sites: Sites, site: str) -> float:
    status = Path(f"/proc/{sites.pid(site)}/status").read_text()
    return int(status.split("VmHWM:")[1].split()[0]) / 1024


def stored(sites: Sites, site: str, meta_id: str) -> Any:
    local_id = sites.replicant(site, meta_id)["local_id"]
    return sites.direct(site, "GET", f"/images/{local_id}/file").json


def was_resumed(heard: bytes, hash_: str) -> bool:
    """Whether an agent has asked for the rest of a file."""
    from_beginning = encode_payload(Opening(RequestKind.FILE, hash_.encode()))
    any_part = from_beginning[: from_beginning.index(hash_.encode()) + len(hash_)]
    return heard.count(any_part) > heard.count(from_beginning)


def test_a_large_upload_reaches_three_sites_in_little_memory_and_leaves_nothing(
    make_sites: MakeSites,
) -> None:
    sites = make_sites(timeout="10m")
    cut = Cut()
    with tapped(*(sites.rig._addresses[site] for site in SITES), cut=cut) as taps:
        urls = dict(zip(SITES, (tap.url for tap in taps), strict=True))
        for site in SITES:
            path = sites.rig.folder(site) / "site.yaml"
            config = yaml.safe_load(path.read_text())
            config |= {"advertise": urls[site], "peers": urls}
            path.write_text(yaml.safe_dump(config))
        sites.start()
        meta_id = sites.create(name="large")
        before = {site: peak_mb(sites, site) for site in SITES}
        cut.after((MEGABYTES << 20) // 4)  # in the middle of what another site fetches
        answer = upload(sites, "site1", f"/images/{meta_id}/file", MEGABYTES)
        assert answer.status == 204
        expected = {"size": MEGABYTES << 20, "sha256": hash_of(MEGABYTES)}
        for site in SITES:
            until(lambda s=site: stored(sites, s, meta_id) == expected, f"for {site}", PATIENCE_S)  # type: ignore[misc]
        assert cut.cuts == 1
        assert was_resumed(b"".join(tap.heard for tap in taps), hash_of(MEGABYTES))  # it went on where it was cut
    for site in SITES:
        until(lambda s=site: files(sites, s) == [], f"for nothing to be left at {site}")  # type: ignore[misc]
        assert peak_mb(sites, site) - before[site] < MOST_GROWTH_MB, site


def test_the_same_content_is_kept_once_and_only_while_a_site_lacks_it(make_sites: MakeSites) -> None:
    sites = make_sites()
    sites.start()
    one, other = sites.create(name="one"), sites.create(name="other")
    sites.rig.stop("site3")
    for meta_id in (one, other):
        assert upload(sites, "site1", f"/images/{meta_id}/file", 1).status == 204
    for site in ("site1", "site2"):
        until(lambda s=site: stored(sites, s, other)["size"] == 1 << 20)  # type: ignore[misc]
        assert [path.name for path in files(sites, site)] == [hash_of(1)]
    sites.rig.start("site3")
    until(lambda: stored(sites, "site3", one) == stored(sites, "site3", other) != {"size": 0, "sha256": ""})
    for site in SITES:
        until(lambda s=site: files(sites, s) == [], f"for nothing to be left at {site}")  # type: ignore[misc]


def test_a_large_json_body_has_its_ids_translated_all_the_same(make_sites: MakeSites) -> None:
    sites = make_sites()
    sites.start()
    image = sites.create(name="image")
    body = {"name": "server", "image": image, "notes": ["x" * 1000] * 200}
    answer = sites.call("site2", "POST", "/servers", body, EVERYWHERE, Cheops_Wait="all")
    assert answer.status == 201, answer.body
    for site in SITES:
        (server,) = sites.images(site, "servers")
        assert server["image"] == sites.images(site)[0]["id"]
        assert server["notes"] == body["notes"]


def test_a_site_that_joins_when_the_body_is_gone_says_so(make_sites: MakeSites) -> None:
    sites = make_sites()
    sites.start()
    meta_id = sites.create("site1", "site1 & site2", name="gone")
    assert upload(sites, "site1", f"/images/{meta_id}/file", 1, Cheops_Wait="all").status == 204
    for site in ("site1", "site2"):
        until(lambda s=site: files(sites, s) == [])  # type: ignore[misc]
    sites.rig.request(
        "site1",
        "POST",
        f"/api/v1/resources/{meta_id}/sites",
        json.dumps({"sites": "site3", "how": "add"}),
        {"Content-Type": "application/json"},
    )
    until(lambda: sites.status("site1", meta_id) == "DIVERGED", "for site3 to say that it cannot have it")
    found = json.loads(sites.rig.request("site1", "GET", f"/api/v1/resources/{meta_id}/status"))
    (failed,) = next(one["failed"] for one in found["sites"] if one["site"] == "site3")
    assert "the body of the request is gone" in failed["detail"]

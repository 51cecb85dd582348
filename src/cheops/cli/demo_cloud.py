"""The part of the demo's story that is played by HTTP: services nobody changed, shared and replicated."""

import json
from hashlib import sha256
from typing import Any

from cheops.cli.demo_stage import Stage
from cheops.demo.answers import HttpAnswer
from cheops.demo.sites import NAMES

_JSON = {"Content-Type": "application/json"}
_EVERYWHERE = " & ".join(NAMES)
_FILES = {site: f"the debian of {site}" for site in NAMES}


def share(stage: Stage) -> None:
    stage.act("Services that nobody changed")
    stage.say(
        "minicloud is two HTTP services: image, and compute, which makes servers from images. Each site has "
        "its own, and they know nothing of Cheops. Its gateway stands before them. Without a scope a request "
        "stays at its site:"
    )
    images = {site: _new_image(stage, site) for site in NAMES[:2]}
    _expect_images(stage, "debian at site1 and at site2, and each is its own", "debian", at=NAMES[:2])
    stage.pause()
    stage.say(
        "A scope says where. A server at site1, made from the image of site2, which site1 does not have:"
    )
    scope = {"Scope": "{compute: site1, image: site2}"}
    data = json.dumps({"name": "vm", "image": images["site2"]})
    stage.curl("site1", "compute", "/servers", headers=scope, data=data)
    wanted = sha256(_FILES["site2"].encode()).hexdigest()
    stage.expect(
        "the server is at site1, and was made from the image of site2",
        lambda: _servers(stage, "site1").get("vm") == wanted,
        lambda: str(_servers(stage, "site1")),
    )


def replicate(stage: Stage) -> None:
    stage.act("One image at three sites")
    stage.say("With & it is created at each site, and is one image from then on, with one id for all:")
    headers = {"Scope": f"{{image: {_EVERYWHERE}}}", "Cheops-Wait": "all", **_JSON}
    made = stage.curl("site1", "image", "/images", headers=headers, data='{"name": "fedora"}')
    meta_id: str = made.json["id"]
    _expect_images(stage, "fedora at every site, under an id of its own that nobody sees", "fedora", at=NAMES)
    stage.pause()
    stage.cut()
    stage.say("Each site goes on with its own replica, and takes changes:")
    path = f"/images/{meta_id}"
    stage.curl("site1", "image", path, method="PATCH", headers=_JSON, data='{"version": 42}')
    stage.curl("site2", "image", path, method="PATCH", headers=_JSON, data='{"os": "linux"}')
    stage.say("And who wants site1, or else another, says so with ; or with all sites that are near:")
    for scope in ("{image: site1 ; site3}", "{image: around(site1, 10s)}"):
        answer = stage.curl("site3", "image", path, headers={"Scope": scope})
        _expect_site(stage, answer, "site3")
    stage.pause()
    stage.heal()
    stage.run("site1", "wait", meta_id, "--for=converged")
    stage.expect(
        "both changes at every site",
        lambda: all(_versions(stage, site) == (42, "linux") for site in NAMES),
        lambda: str([_versions(stage, site) for site in NAMES]),
    )
    answer = stage.curl("site3", "image", path, headers={"Scope": "{image: site1 ; site3}"})
    _expect_site(stage, answer, "site1")
    stage.run("site2", "get", "replicants")


def _new_image(stage: Stage, site: str) -> str:
    id_: str = stage.curl(site, "image", "/images", data='{"name": "debian"}').json["id"]
    stage.curl(site, "image", f"/images/{id_}/file", method="PUT", data=_FILES[site])
    return id_


# -- what is checked, past Cheops --------------------------------------------------------------------------


def _images(stage: Stage, site: str) -> dict[str, dict[str, Any]]:
    found = stage.sites.cloud.own(site, "image", "/images").json["images"]
    return {image["name"]: image for image in found}


def _servers(stage: Stage, site: str) -> dict[str, str]:
    """The name of each server of a site, and the checksum of the image that it was made from."""
    found = stage.sites.cloud.own(site, "compute", "/servers").json["servers"]
    return {server["name"]: server["image_sha256"] for server in found}


def _versions(stage: Stage, site: str) -> tuple[Any, Any]:
    image = _images(stage, site)["fedora"]
    return image.get("version"), image.get("os")


def _expect_images(stage: Stage, what: str, name: str, at: tuple[str, ...]) -> None:
    def ids() -> dict[str, str]:
        return {site: _images(stage, site)[name]["id"] for site in NAMES if name in _images(stage, site)}

    stage.expect(what, lambda: tuple(ids()) == at and len(set(ids().values())) == len(at), lambda: str(ids()))


def _expect_site(stage: Stage, answer: HttpAnswer, site: str) -> None:
    served = answer.headers["Cheops-Site"]
    stage.expect(f"{site} answered", lambda: served == site, lambda: f"{served} did")

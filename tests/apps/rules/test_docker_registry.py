"""A real docker-registry at two sites, with `rules: docker-registry` and skopeo."""

import contextlib
import gzip
import hashlib
import io
import json
import shutil
import subprocess
import sys
import tarfile
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.agent.rig import until
from tests.apps.rules.conftest import MakeSites
from tests.gateway.replicas.app_sites import AppSites, must_be_true
from tests.support.ports import free_port
from tests.wan import Wan

SITES = ("site1", "site2")
BOTH = "site1 & site2"
pytestmark = [
    pytest.mark.timeout(300),
    pytest.mark.skipif(
        not shutil.which("docker-registry") or not shutil.which("skopeo"), reason="needs docker-registry and skopeo"
    ),
]
_MANIFEST = "application/vnd.docker.distribution.manifest.v2+json"


class Registries:
    """A registry at each site, and skopeo in front of each gateway, by a proxy that adds the scope."""

    def __init__(self, sites: AppSites, base: Path) -> None:
        self.sites, self.base = sites, base
        self.proxies = {site: free_port() for site in SITES}

        def argv(site: str, port: int) -> list[str]:
            (base / f"{site}.headers").write_text("")
            config = {
                "version": "0.1",
                "log": {"level": "error"},
                "storage": {"filesystem": {"rootdirectory": str(base / site)}, "delete": {"enabled": True}},
                # At site1, a Location leads past the proxy: what uses an upload then has no scope.
                "http": {"addr": f"127.0.0.1:{port}", "relativeurls": site == "site2"},
            }
            path = base / f"{site}.yml"
            path.write_text(yaml.safe_dump(config))
            return ["docker-registry", "serve", str(path)]

        sites.start(argv)
        for site in SITES:
            host, port = sites.address(site, sites.service)
            proxy = [sys.executable, "-m", "tests.apps.rules.scope_proxy"]
            sites.rig.start_beside(
                site, [*proxy, str(self.proxies[site]), f"{host}:{port}", str(base / f"{site}.headers")]
            )
            until(lambda s=site: self._is_up(s), f"for the proxy of {site}")  # type: ignore[misc]

    def _is_up(self, site: str) -> bool:
        with contextlib.suppress(OSError):
            return self.sites._send(site, ("127.0.0.1", self.proxies[site]), "GET", "/v2/", None, "", {}).status == 200
        return False

    def scope(self, text: str) -> None:
        for site in SITES:
            (self.base / f"{site}.headers").write_text(f"Scope={{registry: {text}}}\n" if text else "")

    def name(self, site: str, image: str) -> str:
        return f"docker://127.0.0.1:{self.proxies[site]}/{image}"

    def skopeo(self, site: str, command: str, *names: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        """`push FOLDER IMAGE`, `pull IMAGE FOLDER`, or a command of skopeo about an image."""
        flags = ("--tls-verify=false",)
        if command == "push":
            words: tuple[str, ...] = ("copy", "--dest-tls-verify=false", f"dir:{names[0]}", self.name(site, names[1]))
        elif command == "pull":
            words = ("copy", "--src-tls-verify=false", self.name(site, names[0]), f"dir:{names[1]}")
        else:
            words = (command, *flags, self.name(site, names[0]))
        done = self.sites.run(site, "skopeo", "--insecure-policy", *words)
        assert not check or done.returncode == 0, done.stderr
        return done

    def image(self, text: str, layers: int = 1, size: int = 10) -> Path:
        """An image in a folder, as skopeo reads it: its layers have the text, and are so many bytes long."""
        folder = self.base / f"image-{text}"
        folder.mkdir()

        def blob(content: bytes, media_type: str) -> dict[str, Any]:
            digest = hashlib.sha256(content).hexdigest()
            (folder / digest).write_bytes(content)
            return {"mediaType": media_type, "size": len(content), "digest": f"sha256:{digest}"}

        kind = "application/vnd.docker"
        made, plain = [], []
        for number in range(layers):
            tar = io.BytesIO()
            with tarfile.open(fileobj=tar, mode="w") as archive:
                content = f"{text}-{number}-".encode() + bytes(size)
                member = tarfile.TarInfo(f"file{number}")
                member.size = len(content)
                archive.addfile(member, io.BytesIO(content))
            plain.append(f"sha256:{hashlib.sha256(tar.getvalue()).hexdigest()}")
            made.append(blob(gzip.compress(tar.getvalue(), 0, mtime=0), f"{kind}.image.rootfs.diff.tar.gzip"))
        config = {"architecture": "amd64", "os": "linux", "config": {"Labels": {"text": text}}}
        config |= {"rootfs": {"type": "layers", "diff_ids": plain}}
        described = blob(json.dumps(config).encode(), f"{kind}.container.image.v1+json")
        manifest = {"schemaVersion": 2, "mediaType": _MANIFEST, "config": described, "layers": made}
        (folder / "manifest.json").write_text(json.dumps(manifest))
        (folder / "version").write_text("Directory Transport Version: 1.1\n")
        return folder

    def state(self, site: str) -> dict[str, str]:
        """All that the registry has on its disk about the repositories of a team, except for unfinished uploads."""
        root = self.base / site / "docker" / "registry" / "v2" / "repositories" / "team"
        while True:
            files = (path for path in root.rglob("*") if path.is_file() and "_uploads" not in path.parts)
            with suppress(FileNotFoundError):  # the registry deletes while we look: look again
                return {str(path.relative_to(root)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}

    def tags(self, site: str, name: str) -> dict[str, str]:
        found = self.sites.direct(site, "GET", f"/v2/{name}/tags/list").json.get("tags") or []
        return {tag: self._digest(site, f"/v2/{name}/manifests/{tag}") for tag in found}

    def _digest(self, site: str, path: str) -> str:
        """The registry gives a newer manifest only to those who ask for it."""
        port = self.sites.own(site, self.sites.service)
        found = self.sites._send(site, ("127.0.0.1", port), "HEAD", path, None, "", {"Accept": _MANIFEST})
        return str(found.headers["Docker-Content-Digest"])

    def equal(self) -> dict[str, str]:
        """Wait until both registries have the same; no site may say CONVERGED before. What they have."""
        until(lambda: self.state("site1") == self.state("site2"), "for both sites to have the same")
        said = self.sites.settled()
        states = [self.state(site) for site in SITES]
        must_be_true(said, states)
        assert said == {site: {"CONVERGED"} for site in SITES}, states
        return states[0]


@pytest.fixture
def registries(make_sites: MakeSites, wan: Wan, tmp_path: Path) -> Registries:
    return Registries(make_sites("registry", wan, sites=SITES, rules="docker-registry"), tmp_path)


def test_images_are_the_same_everywhere_also_after_a_cut(registries: Registries, wan: Wan, tmp_path: Path) -> None:
    alone = registries.image("alone")
    registries.skopeo("site1", "push", str(alone), "alone:1")  # without a scope, as without Cheops
    assert registries.tags("site2", "alone") == {}
    registries.scope("site2")  # shared: at the other site
    registries.skopeo("site1", "push", str(alone), "shared:1")
    assert [list(registries.tags(site, "shared")) for site in SITES] == [[], ["1"]]
    registries.scope(BOTH)
    first = registries.image("first", layers=2, size=3_000_000)
    registries.skopeo("site1", "push", str(first), "team/app:latest")
    until(lambda: registries.tags("site2", "team/app").keys() == {"latest"}, "for the image at site2")
    registries.skopeo("site2", "pull", "team/app:latest", str(tmp_path / "pulled"))
    assert (tmp_path / "pulled" / "manifest.json").read_bytes() == (first / "manifest.json").read_bytes()
    wan.partition(["site1"], ["site2"])
    images = {name: registries.image(name) for name in ("one", "two", "three")}
    registries.skopeo("site1", "push", str(images["one"]), "team/app:latest")
    registries.skopeo("site2", "push", str(images["two"]), "team/app:latest")
    registries.skopeo("site2", "push", str(images["three"]), "team/other:3")
    registries.skopeo("site1", "push", str(images["three"]), "team/app:3")
    wan.heal()
    until(lambda: len(registries.tags("site1", "team/other")) == 1, "for the other repository")
    registries.equal()
    for name in ("team/app", "team/other"):
        assert registries.tags("site1", name) == registries.tags("site2", name), name
    # A manifest that lost its tag is still there, by its digest, at both sites.
    digests = [hashlib.sha256((one / "manifest.json").read_bytes()).hexdigest() for one in (first, *images.values())]
    for site in SITES:
        for digest in digests:
            assert registries._digest(site, f"/v2/team/app/manifests/sha256:{digest}") == f"sha256:{digest}"


def test_a_tag_and_a_digest_are_names_of_one_manifest(registries: Registries, wan: Wan) -> None:
    registries.scope(BOTH)
    image, other = registries.image("image"), registries.image("other")
    for tag in ("1", "2"):
        registries.skopeo("site1", "push", str(image), f"team/app:{tag}")
    registries.skopeo("site1", "push", str(other), "team/app:other")
    until(lambda: registries.tags("site2", "team/app").keys() == {"1", "2", "other"}, "for the tags at site2")
    wan.partition(["site1"], ["site2"])
    registries.skopeo("site2", "delete", "team/app:2")  # by its digest, so both tags go
    assert registries.tags("site2", "team/app").keys() == {"other"}
    registries.skopeo("site1", "push", str(image), "team/app:3")  # the later one: at the end, it is there
    wan.heal()
    until(lambda: registries.tags("site2", "team/app").keys() == {"3", "other"}, "for the last tag")
    registries.equal()
    assert registries.tags("site1", "team/app").keys() == {"3", "other"}


def test_what_an_image_needs_must_be_replicated_first(registries: Registries, tmp_path: Path) -> None:
    image = registries.image("image")
    registries.skopeo("site1", "push", str(image), "team/alone:1")
    manifest = (image / "manifest.json").read_bytes()
    path = "/v2/team/alone/manifests/2"
    refused = registries.sites.call("site1", "PUT", path, manifest, BOTH, Content_Type=_MANIFEST)
    assert refused.status == 409
    assert "is not replicated at site1 and site2" in refused.json["detail"]
    # skopeo asks with the scope, finds nothing that is replicated, and uploads it: also to another repository, where it
    # asks the registry to mount it from the first one.
    registries.scope(BOTH)
    for name in ("team/alone:2", "team/mounted:2"):
        registries.skopeo("site1", "push", str(image), name)
    until(lambda: registries.tags("site2", "team/mounted").keys() == {"2"}, "for the image at site2")
    registries.skopeo("site2", "pull", "team/mounted:2", str(tmp_path / "pulled"))
    digest = hashlib.sha256(manifest).hexdigest()
    path = "/v2/team/alone/manifests/3"
    answer = registries.sites.call("site2", "PUT", path, manifest, BOTH, Content_Type=_MANIFEST)
    assert answer.status == 201, answer.body
    assert answer.headers["Docker-Content-Digest"] == f"sha256:{digest}"
    assert answer.headers["Location"].endswith(f"/v2/team/alone/manifests/sha256:{digest}")
    opened = registries.sites.call(
        "site1", "POST", f"/v2/team/b/blobs/uploads/?mount=sha256:{digest}&from=x", None, BOTH
    )
    assert opened.status == 202
    assert opened.headers["Docker-Upload-UUID"]

"""A real Kubernetes API server at two sites, with `rules: kubernetes` and kubectl."""

import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.agent.rig import until
from tests.apps.rules.proxies import ScopeProxies
from tests.gateway.replicas.app_sites import AppSites, must_be_true
from tests.support.ports import free_port
from tests.wan import Wan

SITES = ("site1", "site2")
BOTH = "site1 & site2"
PROGRAMS = Path(os.environ.get("CHEOPS_TEST_KUBERNETES", ""))
pytestmark = [
    pytest.mark.timeout(400),
    pytest.mark.skipif(
        not (PROGRAMS / "kube-apiserver").is_file() or not shutil.which("kubectl") or not shutil.which("etcd"),
        reason="needs CHEOPS_TEST_KUBERNETES (a directory with kube-apiserver), kubectl and etcd",
    ),
]
DEPLOYMENT = {
    "apiVersion": "apps/v1",
    "kind": "Deployment",
    "metadata": {"name": "web-server-2026", "labels": {"app": "web-server-2026"}},
    "spec": {
        "replicas": 1,
        "selector": {"matchLabels": {"app": "web-server-2026"}},
        "template": {
            "metadata": {"labels": {"app": "web-server-2026"}},
            "spec": {"containers": [{"name": "web", "image": "nginx:1"}]},
        },
    },
}


class Clusters:
    """An API server with an etcd of its own at each site, and kubectl in front of each gateway."""

    def __init__(self, base: Path, wan: Wan) -> None:
        self.base = base
        self.sites = AppSites(base / "rig", "kube", wan, SITES, rules="kubernetes")
        self.ports: dict[str, int] = {}
        self._proxies = ScopeProxies(self.sites, base)
        self._make_authority()
        for site in SITES:
            port = self.sites.own(site, "kube")
            token = base / f"{site}.token"
            token.write_text(f"Authorization: Bearer token-of-{site}\n")
            self.sites.configure(
                site,
                url=f"https://127.0.0.1:{port}",
                server_name="localhost",
                ca=str(base / "ca.crt"),
                auth={"file": str(token)},
                timeout="30s",
            )

    def _make_authority(self) -> None:
        """An authority, and certificates of the API servers; keys for service accounts."""
        (self.base / "ext").write_text("subjectAltName=IP:127.0.0.1,DNS:localhost")
        for line in (
            "req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=ca -keyout ca.key -out ca.crt",
            "req -newkey rsa:2048 -nodes -subj /CN=localhost -keyout api.key -out api.csr",
            "x509 -req -in api.csr -CA ca.crt -CAkey ca.key -CAcreateserial -days 2 -extfile ext -out api.crt",
            "genrsa -out sa.key 2048",
        ):
            subprocess.run(["openssl", *line.split()], cwd=self.base, check=True, capture_output=True)

    def start(self) -> None:
        for site in SITES:
            store, peer = free_port(), free_port()
            client = f"http://127.0.0.1:{store}"
            self.sites.rig.start_beside(
                site,
                [
                    *("etcd", "--data-dir", str(self.base / f"etcd-{site}"), "--unsafe-no-fsync"),
                    *("--listen-client-urls", client, "--advertise-client-urls", client),
                    *("--listen-peer-urls", f"http://127.0.0.1:{peer}"),
                ],
            )
            (self.base / f"{site}.csv").write_text(f'token-of-{site},admin,admin,"system:masters"\n')
            self.ports[site] = store
        self.sites.start(self._server)
        for site in SITES:
            until(lambda s=site: self._is_ready(s), f"for the API server of {site}")  # type: ignore[misc]
        self._proxies.start()

    def _server(self, site: str, port: int) -> list[str]:
        key = str(self.base / "sa.key")
        return [
            str(PROGRAMS / "kube-apiserver"),
            f"--etcd-servers=http://127.0.0.1:{self.ports[site]}",
            *("--bind-address=127.0.0.1", "--advertise-address=127.0.0.1", f"--secure-port={port}"),
            *(f"--tls-cert-file={self.base / 'api.crt'}", f"--tls-private-key-file={self.base / 'api.key'}"),
            *(f"--token-auth-file={self.base / f'{site}.csv'}", "--authorization-mode=RBAC"),
            *("--service-account-issuer=https://kubernetes.default.svc", f"--service-account-signing-key-file={key}"),
            *(f"--service-account-key-file={key}", "--service-cluster-ip-range=10.0.0.0/24"),
            *("--endpoint-reconciler-type=none", "--disable-admission-plugins=ServiceAccount"),
        ]

    def _is_ready(self, site: str) -> bool:
        return self.direct(site, "get", "--raw", "/readyz").stdout.strip() == "ok"

    def kubectl(self, site: str, *argv: str, scope: str = "", content: Any = None) -> subprocess.CompletedProcess[str]:
        """kubectl through the gateway of a site."""
        return self._run(site, "--server", self.url(site, scope), *argv, content=content)

    def url(self, site: str, scope: str = "") -> str:
        """The gateway of a site, with the credentials of a client and this scope."""
        return self._proxies.url(site, scope, Authorization=f"Bearer token-of-{site}")

    def watch(self, site: str, *argv: str) -> "Watch":
        """kubectl that watches through the gateway of a site."""
        home = ("--cache-dir", str(self.base / f"home-{site}"))
        return Watch(self, site, ["kubectl", *home, "--server", self.url(site), "get", *argv, "-w"])

    def direct(self, site: str, *argv: str) -> subprocess.CompletedProcess[str]:
        """kubectl at the API server of a site, past its gateway."""
        server = f"https://127.0.0.1:{self.sites.own(site, 'kube')}"
        authority = ("--certificate-authority", str(self.base / "ca.crt"))
        return self._run(site, "--server", server, *authority, "--token", f"token-of-{site}", *argv)

    def _run(self, site: str, *argv: str, content: Any = None) -> subprocess.CompletedProcess[str]:
        home = self.base / f"home-{site}"
        text = None if content is None else json.dumps(content)
        return self.sites.run(site, "kubectl", "--cache-dir", str(home), *argv, input=text)

    def deployment(self, site: str) -> dict[str, Any] | None:
        """What the API server of a site has, without what it sets itself."""
        done = self.direct(site, "get", "deployment", "web-server-2026", "-o", "json")
        if done.returncode:
            return None
        found = json.loads(done.stdout)
        labels = found["metadata"]["labels"]
        return {"name": found["metadata"]["name"], "labels": labels, "spec": found["spec"]}


class Watch:
    """A command that prints a line for each change, as long as it runs."""

    def __init__(self, clusters: Clusters, site: str, argv: list[str]) -> None:
        self._file = clusters.base / f"watch-{site}"
        with self._file.open("w") as out:
            self._process = clusters.sites.start_program(site, argv, out)

    @property
    def lines(self) -> list[list[str]]:
        return [line.split() for line in self._file.read_text().splitlines()]

    def end(self) -> None:
        self._process.terminate()
        self._process.wait(10)


@pytest.fixture
def clusters(wan: Wan, tmp_path: Path) -> Iterator[Clusters]:
    made = Clusters(tmp_path, wan)
    try:
        made.start()
        yield made
    finally:
        made.sites.rig.close()


def equal(clusters: Clusters, **wanted: Any) -> None:
    def are() -> bool:
        found = [clusters.deployment(site) for site in SITES]
        first = found[0]
        return first is not None and found[0] == found[1] and {key: first["spec"][key] for key in wanted} == wanted

    until(are, f"for {wanted} at both sites, have {[clusters.deployment(site) for site in SITES]}")
    assert clusters.sites.settled() == {site: {"CONVERGED"} for site in SITES}


def ok(done: subprocess.CompletedProcess[str]) -> str:
    assert done.returncode == 0, done.stderr
    return str(done.stdout)


def test_kubectl_creates_changes_and_deletes_at_both_sites(clusters: Clusters) -> None:
    shown = ok(clusters.kubectl("site1", "create", "-f", "-", scope=BOTH, content=DEPLOYMENT))
    assert shown == "deployment.apps/web-server-2026 created\n"  # its own name, not an id
    equal(clusters, replicas=1)
    ok(clusters.kubectl("site2", "scale", "deployment", "web-server-2026", "--replicas=8"))
    equal(clusters, replicas=8)
    patch = '{"spec": {"minReadySeconds": 5}}'
    ok(clusters.kubectl("site1", "patch", "deployment", "web-server-2026", "-p", patch))
    equal(clusters, replicas=8, minReadySeconds=5)
    # Read, modify, write: with the version and uid of one site.
    found = json.loads(ok(clusters.kubectl("site2", "get", "deployment", "web-server-2026", "-o", "json")))
    found["spec"]["replicas"] = 3
    ok(clusters.kubectl("site2", "replace", "-f", "-", content=found))
    equal(clusters, replicas=3, minReadySeconds=5)
    changed = {**DEPLOYMENT, "spec": {**DEPLOYMENT["spec"], "replicas": 4}}  # type: ignore[dict-item]
    ok(clusters.kubectl("site1", "apply", "-f", "-", content=changed))
    equal(clusters, replicas=4)
    ok(clusters.kubectl("site1", "create", "-f", "-", "--dry-run=server", scope=BOTH, content=_named("other")))
    assert clusters.direct("site1", "get", "deployment", "other").returncode != 0
    ok(clusters.kubectl("site2", "delete", "deployment", "web-server-2026", "--wait=false"))
    until(lambda: [clusters.deployment(site) for site in SITES] == [None, None], "for it to be gone")


def test_one_name_created_on_both_sides_of_a_cut_is_one_deployment(clusters: Clusters, wan: Wan) -> None:
    wan.partition(["site1"], ["site2"])
    ok(clusters.kubectl("site1", "create", "-f", "-", scope=BOTH, content=DEPLOYMENT))
    later = {**DEPLOYMENT, "spec": {**DEPLOYMENT["spec"], "replicas": 5}}  # type: ignore[dict-item]
    ok(clusters.kubectl("site2", "create", "-f", "-", scope=BOTH, content=later))
    ok(clusters.kubectl("site2", "scale", "deployment", "web-server-2026", "--replicas=6"))
    # A namespace, and what is in it: no path of the one is above that of the other.
    ok(clusters.kubectl("site1", "create", "namespace", "team", scope=BOTH))  # kubectl sends this in protobuf
    ok(clusters.kubectl("site1", "create", "-n", "team", "-f", "-", scope=BOTH, content=_named("inside")))
    wan.heal()
    said = clusters.sites.settled()
    must_be_true(said, [clusters.deployment(site) for site in SITES])
    until(lambda: clusters.deployment("site1") == clusters.deployment("site2"), "for one deployment at both sites")
    inside = ("get", "deployment", "-n", "team", "inside")
    until(lambda: clusters.direct("site2", *inside).returncode == 0, "for what is in the new namespace")
    assert clusters.sites.settled() == {site: {"CONVERGED"} for site in SITES}


def test_a_deployment_that_was_changed_or_deleted_past_cheops_is_repaired(clusters: Clusters) -> None:
    ok(clusters.kubectl("site1", "create", "-f", "-", scope=BOTH, content=DEPLOYMENT))
    equal(clusters, replicas=1)
    [meta_id] = clusters.sites.statuses("site1")
    ok(clusters.direct("site2", "patch", "deployment", "web-server-2026", "-p", '{"spec": {"minReadySeconds": 7}}'))
    _repair(clusters, meta_id, "site1")
    equal(clusters, replicas=1)
    assert "minReadySeconds" not in (clusters.deployment("site2") or {})["spec"]
    ok(clusters.direct("site1", "delete", "deployment", "web-server-2026", "--wait=false"))
    until(lambda: clusters.deployment("site1") is None, "for it to be gone")
    _repair(clusters, meta_id, "site2")
    equal(clusters, replicas=1)
    ok(clusters.kubectl("site1", "patch", "deployment", "web-server-2026", "-p", '{"spec": {"replicas": 2}}'))
    equal(clusters, replicas=2)


def _repair(clusters: Clusters, meta_id: str, source: str) -> None:
    body = json.dumps({"resolution": "state", "site": source}).encode()
    headers = {"Content-Type": "application/json"}
    answer = clusters.sites.rig.request("site1", "POST", f"/api/v1/resources/{meta_id}/resolve", body, headers)
    assert {one["site"]: one["status"] for one in json.loads(answer)["sites"]} == dict.fromkeys(SITES, "OK")


def _named(name: str) -> dict[str, Any]:
    return {**DEPLOYMENT, "metadata": {"name": name, "labels": {"app": "web-server-2026"}}}


def test_a_watch_shows_each_change_once_and_by_its_name(clusters: Clusters) -> None:
    watch = clusters.watch("site2", "deployments", "-o", "custom-columns=:metadata.name,:spec.replicas", "--no-headers")
    try:
        ok(clusters.kubectl("site1", "create", "-f", "-", scope=BOTH, content=DEPLOYMENT))
        until(lambda: watch.lines == [["web-server-2026", "1"]], f"for the new deployment, have {watch.lines}")
        ok(clusters.kubectl("site1", "scale", "deployment", "web-server-2026", "--replicas=8"))
        until(lambda: watch.lines[1:] == [["web-server-2026", "8"]], f"for the change, have {watch.lines}")
        ok(clusters.kubectl("site1", "delete", "deployment", "web-server-2026", "--wait=false"))
        until(lambda: clusters.deployment("site2") is None, "for it to be gone")
        until(lambda: len(watch.lines) == 3, f"for the deletion, have {watch.lines}")
        assert {line[0] for line in watch.lines} == {"web-server-2026"}
    finally:
        watch.end()


PROTOBUF = "application/vnd.kubernetes.protobuf"
PLACE = "/apis/apps/v1/namespaces/default/deployments"


def test_protobuf_is_answered_and_what_cannot_be_read_is_refused(clusters: Clusters) -> None:
    rights = {"Authorization": "Bearer token-of-site1"}
    made = clusters.sites.call("site1", "POST", PLACE, DEPLOYMENT, BOTH, Accept=PROTOBUF, **rights)
    assert (made.status, made.headers["Content-Type"], made.body[:4]) == (201, PROTOBUF, b"k8s\0")
    equal(clusters, replicas=1)
    item = f"{PLACE}/web-server-2026"
    read = clusters.sites.call("site1", "GET", item, Accept=PROTOBUF, **rights)
    assert (read.status, read.body[:4]) == (200, b"k8s\0")
    as_sent = {**rights, "Content_Type": PROTOBUF}
    # It has the version and uid of one site in it, which nobody could remove for the other.
    refused = clusters.sites.call("site1", "PUT", item, read.body, **as_sent)
    assert refused.status == 415
    assert "$.metadata.creationTimestamp" in refused.json["message"]
    merge = {**rights, "Content_Type": "application/merge-patch+json", "Accept": PROTOBUF}
    changed = clusters.sites.call("site1", "PATCH", item, {"spec": {"replicas": 5}}, **merge)
    assert (changed.status, changed.body[:4]) == (200, b"k8s\0")
    equal(clusters, replicas=5)

"""S3 with `rules: s3`: boto3 at moto, which checks signatures and has other keys at each site."""

import json
import os
from pathlib import Path
from typing import Any

import pytest

from tests.agent.rig import until
from tests.apps.rules.conftest import MakeSites
from tests.gateway.replicas.app_sites import AppSites, must_be_true
from tests.support.command import ROOT
from tests.wan import Wan

SITES = ("site1", "site2")
BOTH = "site1 & site2"
PART = 5 * 2**20
HERE = Path(__file__).parent
pytestmark = pytest.mark.timeout(300)


def python() -> str:
    """The interpreter of the environment that has moto and boto3."""
    path = Path(os.environ.get("CHEOPS_TEST_S3", ROOT / ".venv-s3")) / "bin" / "python"
    if not path.exists():
        pytest.skip("needs moto and boto3: 'make apps' installs them into .venv-s3")
    return str(path)


class Buckets:
    """A server of S3 at each site, and clients."""

    def __init__(self, sites: AppSites, base: Path) -> None:
        self.sites, self.base = sites, base
        for site in SITES:
            keys = {"file": str(base / f"s3-{site}" / "site")}
            sites.configure(site, rules="s3", sign={"sigv4": keys})
        server = [python(), str(HERE / "s3_server.py")]
        sites.start(lambda site, port: [*server, str(port), str(base / f"s3-{site}")])

    def call(self, site: str, *calls: Any, scope: str = BOTH) -> list[Any]:
        """Calls of a client through the gateway of a site; each must succeed."""
        found = self.tried(site, *calls, scope=scope)
        assert not [one for one in found if "error" in one], found
        return [one["ok"] for one in found]

    def tried(self, site: str, *calls: Any, scope: str = BOTH, of: str = "") -> list[Any]:
        """The same, with whatever they give; `of` is the site whose key the client has."""
        host, port = self.sites.address(site, self.sites.service)
        return self._run(site, f"http://{host}:{port}", of or site, f"{{s3: {scope}}}" if scope else "", calls)

    def state(self, site: str) -> Any:
        """What the service itself has."""
        found = self._seen(site)
        assert "ok" in found, found
        return found["ok"]

    def _seen(self, site: str) -> Any:
        """The same, or an error if something is deleted meanwhile."""
        port = self.sites.own(site, self.sites.service)
        return self._run(site, f"http://127.0.0.1:{port}", site, "", [["state", {}]])[0]

    def _are_equal(self) -> bool:
        first, second = self._seen("site1"), self._seen("site2")
        return "ok" in first and first == second

    def _run(self, site: str, url: str, of: str, scope: str, calls: Any) -> list[Any]:
        argv = (python(), str(HERE / "s3_client.py"), url, str(self.base / f"s3-{of}" / "client"), scope)
        done = self.sites.run(site, *argv, input=json.dumps(calls))
        assert done.returncode == 0, done.stderr
        return list(json.loads(done.stdout))

    def equal(self) -> Any:
        """Wait until both services have the same; no site may say CONVERGED before. What they have."""
        until(self._are_equal, "for both sites to have the same")
        said = self.sites.settled()
        states = [self.state(site) for site in SITES]
        must_be_true(said, states)
        assert said == {site: {"CONVERGED"} for site in SITES}, states
        return states[0]


@pytest.fixture
def buckets(make_sites: MakeSites, wan: Wan, tmp_path: Path) -> Buckets:
    return Buckets(make_sites("s3", wan, sites=SITES), tmp_path)


def put(key: str, body: str, **more: Any) -> list[Any]:
    return ["put_object", {"Bucket": "bucket", "Key": key, "Body": body, **more}]


def tag(key: str, value: str) -> list[Any]:
    tags = {"TagSet": [{"Key": "k", "Value": value}]}
    return ["put_object_tagging", {"Bucket": "bucket", "Key": key, "Tagging": tags}]


BUCKET: list[Any] = ["create_bucket", {"Bucket": "bucket"}]


def test_objects_and_uploads_are_the_same_everywhere_also_after_a_cut(buckets: Buckets, wan: Wan) -> None:
    # Without a scope, it is as without Cheops.
    buckets.call("site1", ["create_bucket", {"Bucket": "alone"}], scope="")
    buckets.call("site1", ["delete_bucket", {"Bucket": "alone"}], scope="site1")
    # Shared: a client of site2 at site1.
    shared = [
        BUCKET,
        put("a", "1"),
        ["delete_object", {"Bucket": "bucket", "Key": "a"}],
        ["delete_bucket", {"Bucket": "bucket"}],
    ]
    assert all("ok" in one for one in buckets.tried("site1", *shared, scope="site2", of="site2"))
    one = {"Bucket": "bucket", "Key": "big file/ö", "Body": f"x*{2 * PART + 7}"}
    more = {"ContentType": "text/x-large", "Metadata": {"who": "me"}, "Tagging": "a=b"}
    buckets.call("site1", BUCKET, put("a b/ü", "small"), ["upload", {**one, "ExtraArgs": more}], tag("a b/ü", "1"))
    buckets.call("site1", put("tagged first", "0"), put("tagged last", "0"))
    found = buckets.equal()["bucket"]["objects"]
    assert found["big file/ö"]["etag"].endswith('-3"')
    assert found["big file/ö"]["type"] == "text/x-large"
    assert found["big file/ö"]["metadata"] == {"who": "me"}
    assert found["big file/ö"]["tags"] == [{"Key": "a", "Value": "b"}]
    assert found["a b/ü"]["tags"] == [{"Key": "k", "Value": "1"}]
    wan.partition(["site1"], ["site2"])
    buckets.call(
        "site1",
        tag("tagged first", "1"),
        put("tagged last", "1"),
        put("a b/ü", "from site1"),
        put("both", "1"),
        tag("both", "1"),
        ["upload", {"Bucket": "bucket", "Key": "cut", "Body": f"y*{2 * PART}"}],
        ["put_object_acl", {"Bucket": "bucket", "Key": "cut", "ACL": "public-read"}],
        ["create_bucket", {"Bucket": "second"}],
        *(["put_object", {"Bucket": "second", "Key": f"k{n}", "Body": "v"}] for n in range(6)),
    )
    # It is replicated, so it needs no scope.
    buckets.call("site2", put("a b/ü", "from site2"), tag("big file/ö", "2"), scope="")
    buckets.call("site2", put("tagged first", "2"), tag("tagged last", "2"), scope="")
    buckets.call("site2", ["upload", {"Bucket": "bucket", "Key": "both", "Body": f"z*{PART + 1}"}])
    wan.heal()
    found = buckets.equal()
    assert len(found["second"]["objects"]) == 6
    assert found["bucket"]["objects"]["cut"]["grants"] == 2
    assert found["bucket"]["objects"]["both"]["etag"].endswith('-2"')
    assert found["bucket"]["objects"]["big file/ö"]["tags"] == [{"Key": "k", "Value": "2"}]
    # What is in a bucket goes before it, at every site.
    wan.partition(["site1"], ["site2"])
    deletes = [["delete_object", {"Bucket": "second", "Key": f"k{n}"}] for n in range(6)]
    buckets.call("site2", *deletes, ["delete_bucket", {"Bucket": "second"}], scope="")
    wan.heal()
    assert "second" not in buckets.equal()


def test_what_cannot_be_the_same_everywhere_is_refused(buckets: Buckets) -> None:
    buckets.call("site1", BUCKET, put("source", "1"), put("other", "2"))
    opened = ["create_multipart_upload", {"Bucket": "bucket", "Key": "upload"}]
    started, elsewhere = buckets.call("site1", opened)[0], buckets.call("site2", opened)[0]
    keys = {"Objects": [{"Key": "source"}, {"Key": "other"}]}
    copy = {"Bucket": "bucket", "Key": "copy", "CopySource": "bucket/source"}
    part = {"Bucket": "bucket", "Key": "upload", "PartNumber": 1}
    refused = buckets.tried(
        "site1",
        ["copy_object", copy],
        ["delete_objects", {"Bucket": "bucket", "Delete": keys}],
        ["put_bucket_versioning", {"Bucket": "bucket", "VersioningConfiguration": {"Status": "Enabled"}}],
        ["upload_part", {**part, "UploadId": "unknown", "Body": "x"}],
        ["upload_part", {**part, "UploadId": elsewhere["UploadId"], "Body": "x"}],
        ["upload_part_copy", {**part, "UploadId": started["UploadId"], "CopySource": "bucket/source"}],
    )
    assert [one.get("status") for one in refused] == [422, 422, 422, 404, 404, 422], refused
    # Replicants are refused without a scope, too; all else goes to the service.
    refused = buckets.tried("site1", ["delete_objects", {"Bucket": "bucket", "Delete": keys}], scope="")
    assert refused[0]["status"] == 422, refused
    buckets.call(
        "site1", ["create_bucket", {"Bucket": "alone"}], ["copy_object", {**copy, "Bucket": "alone"}], scope=""
    )
    buckets.call("site1", ["delete_objects", {"Bucket": "alone", "Delete": {"Objects": [{"Key": "copy"}]}}], scope="")
    buckets.call("site1", ["delete_bucket", {"Bucket": "alone"}], scope="")
    # An upload that its client gives up leaves nothing; nor does one of which S3 refuses the end.
    end = {"Bucket": "bucket", "Key": "upload", "UploadId": started["UploadId"]}
    parts = {"MultipartUpload": {"Parts": [{"ETag": '"no"', "PartNumber": 1}]}}
    failed = buckets.tried("site1", ["complete_multipart_upload", {**end, **parts}])
    assert failed[0]["status"] in (400, 404), failed
    buckets.call("site1", ["abort_multipart_upload", end])
    assert (
        buckets.tried("site1", ["upload_part", {**part, "UploadId": started["UploadId"], "Body": "x"}])[0]["status"]
        == 404
    )
    assert buckets.equal()["bucket"]["objects"].keys() == {"source", "other"}


def test_a_site_whose_key_is_refused_waits_for_another_one(buckets: Buckets) -> None:
    keys = buckets.base / "s3-site2" / "site"
    right = keys.read_text()
    keys.write_text("[default]\naws_access_key_id = none\naws_secret_access_key = wrong-secret\n")
    buckets.call("site1", BUCKET, put("a", "1"))
    until(lambda: "CONVERGING" in buckets.sites.statuses("site1").values(), "for site2 to be behind")
    keys.write_text(right)
    assert buckets.equal()["bucket"]["objects"].keys() == {"a"}
    for site in SITES:
        for file in buckets.sites.rig.folder(site).rglob("*"):
            if file.is_file():
                assert b"wrong-secret" not in file.read_bytes(), file

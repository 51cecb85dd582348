"""Calls of boto3: `python s3_client.py URL KEYS SCOPE < calls`, in the environment that has boto3.

The calls are JSON: a list of [method, arguments]. It prints what each gave, or the error. The scope is added after the
signature: boto3 signs all headers that it knows, and the service never sees this one. `upload` is a multipart upload by
boto3 itself, with several threads; `state` is all that the service has. It needs no module of this project.
"""

import base64
import hashlib
import io
import json
import os
import sys
from typing import Any

os.environ["AWS_SHARED_CREDENTIALS_FILE"] = sys.argv[2]

import boto3  # type: ignore[import-not-found]
from boto3.s3.transfer import TransferConfig  # type: ignore[import-not-found]
from botocore.config import Config  # type: ignore[import-not-found]
from botocore.exceptions import ClientError  # type: ignore[import-not-found]

PART = 5 * 2**20  # the least that S3 takes


def make_client(url: str, scope: str) -> Any:
    config = Config(s3={"addressing_style": "path"}, retries={"total_max_attempts": 1}, read_timeout=60)
    client = boto3.client("s3", endpoint_url=url, region_name="us-east-1", config=config)

    def add_scope(request: Any, **_: Any) -> None:
        if scope:
            request.headers["Scope"] = scope

    client.meta.events.register("before-send.s3", add_scope)
    return client


def call(client: Any, method: str, arguments: dict[str, Any]) -> Any:
    if "Body" in arguments:
        arguments["Body"] = content(arguments["Body"])
    if method == "state":
        return state(client)
    if method == "upload":
        transfer = TransferConfig(multipart_threshold=PART, multipart_chunksize=PART)
        client.upload_fileobj(io.BytesIO(arguments.pop("Body")), Config=transfer, **arguments)
        return {}
    found = getattr(client, method)(**arguments)
    if "Body" in found:
        found["Body"] = base64.b64encode(found["Body"].read()).decode()
    return found


def content(text: str) -> bytes:
    """`x*3` is xxx; anything else is itself."""
    one, sign, times = text.partition("*")
    return (one * int(times) if sign else text).encode()


def state(client: Any) -> dict[str, Any]:
    found = {}
    for bucket in client.list_buckets()["Buckets"]:
        name = bucket["Name"]
        tags = quietly(client.get_bucket_tagging, Bucket=name).get("TagSet", [])
        found[name] = {"tags": tags, "objects": {}}
        for listed in client.list_objects_v2(Bucket=name).get("Contents", []):
            read = client.get_object(Bucket=name, Key=listed["Key"])
            found[name]["objects"][listed["Key"]] = {
                "content": hashlib.sha256(read["Body"].read()).hexdigest(),
                "etag": read["ETag"],
                "type": read["ContentType"],
                "metadata": read["Metadata"],
                "tags": client.get_object_tagging(Bucket=name, Key=listed["Key"])["TagSet"],
                # moto fails if an object of an upload has no ACL
                "grants": len(quietly(client.get_object_acl, Bucket=name, Key=listed["Key"]).get("Grants", [])),
            }
    return found


def quietly(method: Any, **arguments: Any) -> dict[str, Any]:
    try:
        return dict(method(**arguments))
    except ClientError:
        return {}


def main() -> None:
    client = make_client(sys.argv[1], sys.argv[3])
    results = []
    for method, arguments in json.load(sys.stdin):
        try:
            results.append({"ok": call(client, method, arguments)})
        except Exception as error:  # the test looks at it
            response = getattr(error, "response", {})
            status = response.get("ResponseMetadata", {}).get("HTTPStatusCode")
            results.append({"error": str(error), "status": status})
    json.dump(results, sys.stdout, default=str)


if __name__ == "__main__":
    main()

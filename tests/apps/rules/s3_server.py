"""S3 by moto, which checks signatures: `python s3_server.py PORT FOLDER`, in the environment that has moto.

It has two users, and writes their keys to FOLDER as the AWS tools do: `client`, and `site` for the agent of the site.
Every server has other keys. It needs no module of this project.
"""

import os
import sys
from pathlib import Path

os.environ["INITIAL_NO_AUTH_ACTION_COUNT"] = "0"

from moto.iam.models import iam_backends  # type: ignore[import-not-found]
from moto.server import DomainDispatcherApplication, create_backend_app  # type: ignore[import-not-found]
from werkzeug.serving import make_server

ACCOUNT = "123456789012"
POLICY = '{"Version": "2012-10-17", "Statement": [{"Effect": "Allow", "Action": "*", "Resource": "*"}]}'


def main() -> None:
    port, folder = int(sys.argv[1]), Path(sys.argv[2])
    folder.mkdir(parents=True, exist_ok=True)
    backend = iam_backends[ACCOUNT]["aws"]
    for name in ("client", "site"):
        backend.create_user("us-east-1", name)
        backend.put_user_policy(name, "all", POLICY)
        key = backend.create_access_key(name)
        text = f"[default]\naws_access_key_id = {key.access_key_id}\naws_secret_access_key = {key.secret_access_key}\n"
        (folder / f"{name}.new").write_text(text)
        (folder / f"{name}.new").rename(folder / name)
    make_server("127.0.0.1", port, DomainDispatcherApplication(create_backend_app), threaded=True).serve_forever()


if __name__ == "__main__":
    main()

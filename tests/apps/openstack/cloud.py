"""A real keystone and glance per site, each with users, projects and token keys of its own.

Nothing is shared between the sites: the same project has another id at each, and a token of one site means nothing at
another. Every project has one user, who is a plain member of it.
"""

import contextlib
import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.agent.rig import until
from tests.gateway.real.sites import asked
from tests.gateway.stage import Answer
from tests.support.command import ROOT

PROJECTS = ("red", "blue")
ADMIN, PASSWORD = "admin", "the password of admin"
_SERVE = Path(__file__).with_name("serve.py")
_DEFAULT = "default"  # the id of keystone's first domain, at every site

_KEYSTONE = """[DEFAULT]
log_file = {folder}/keystone.log
[database]
connection = sqlite:///{folder}/keystone.db
[token]
provider = fernet
[fernet_tokens]
key_repository = {folder}/fernet
[fernet_receipts]
key_repository = {folder}/fernet
[credential]
key_repository = {folder}/credentials
"""
_GLANCE = """[DEFAULT]
log_file = {folder}/glance.log
use_stderr = false
enabled_backends = files:file
[database]
connection = sqlite:///{folder}/glance.db
[glance_store]
default_backend = files
[files]
filesystem_store_datadir = {folder}/images
[os_glance_staging_store]
filesystem_store_datadir = {folder}/staging
[os_glance_tasks_store]
filesystem_store_datadir = {folder}/tasks
[oslo_concurrency]
lock_path = {folder}
[paste_deploy]
flavor = keystone
config_file = {environment}/etc/glance/glance-api-paste.ini
[keystone_authtoken]
www_authenticate_uri = {identity}
auth_url = {identity}
auth_type = password
username = {admin}
password = {password}
project_name = {admin}
user_domain_id = default
project_domain_id = default
token_cache_time = -1
"""  # token_cache_time: a token that keystone has revoked is refused at once


def environment() -> Path:
    """Where OpenStack is installed; skips if it is nowhere."""
    path = Path(os.environ.get("CHEOPS_TEST_OPENSTACK", ROOT / ".venv-openstack"))
    if not (path / "bin" / "keystone-manage").exists():
        pytest.skip("needs keystone and glance: 'make apps' installs them into .venv-openstack")
    return path


class Cloud:
    """The OpenStack of one site."""

    def __init__(self, folder: Path, site: str, identity_port: int, image_port: int) -> None:
        self.folder, self.site = folder, site
        self.identity_port, self.image_port = identity_port, image_port
        self.projects: dict[str, str] = {}  # name → id
        self._environment = environment()
        self._processes: list[subprocess.Popen[Any]] = []

    @property
    def identity_url(self) -> str:
        return f"http://127.0.0.1:{self.identity_port}/v3"

    def start(self, databases: Path) -> None:
        """Start with empty databases, which the first site makes: creating the tables takes seconds."""
        self.folder.mkdir(parents=True)
        for name, text in (("keystone", _KEYSTONE), ("glance", _GLANCE)):
            self._configure(name, text)
            if not (databases / f"{name}.db").exists():
                self._manage(name, "db_sync")
                shutil.copy(self.folder / f"{name}.db", databases)
            shutil.copy(databases / f"{name}.db", self.folder)
        for what in ("fernet_setup", "credential_setup"):
            self._manage("keystone", what, "--keystone-user", "root", "--keystone-group", "root")
        # glance looks for keystone in the catalogue of its own token.
        urls = (f"--bootstrap-{kind}-url={self.identity_url}" for kind in ("public", "internal", "admin"))
        region = f"--bootstrap-region-id={self.site}"
        self._manage("keystone", "bootstrap", f"--bootstrap-password={PASSWORD}", region, *urls)
        self._serve("keystone.wsgi.api", self.identity_port, OS_KEYSTONE_CONFIG_FILES=f"{self.folder}/keystone.conf")
        until(lambda: _listens(self.identity_port), f"for keystone of {self.site}")
        self._add_projects()
        self._serve("glance.wsgi.api", self.image_port, OS_GLANCE_CONFIG_DIR=f"{self.folder}/glance")
        until(lambda: _listens(self.image_port), f"for glance of {self.site}")

    def close(self) -> None:
        for process in self._processes:
            process.kill()
            process.wait()

    # -- as a client of the site's own services ------------------------------------------------------------

    def token(self, user: str, password: str | None = None, project: str | None = None) -> str:
        """A new token of this site for one of its users."""
        answer = self.login(user, password or self.password(user), project or user)
        assert answer.status == 201, answer.body
        token: str = answer.headers["X-Subject-Token"]
        return token

    def login(self, user: str, password: str, project: str) -> Answer:
        return self.identity("POST", "/v3/auth/tokens", login_body(user, password, project))

    def password(self, user: str) -> str:
        return PASSWORD if user == ADMIN else f"the password of {user} at {self.site}"

    def revoke(self, token: str) -> None:
        admin = self.token(ADMIN)
        answer = self.identity("DELETE", "/v3/auth/tokens", token=admin, headers={"X-Subject-Token": token})
        assert answer.status == 204, answer.body

    def identity(
        self,
        method: str,
        target: str,
        body: object = None,
        token: str | None = None,
        headers: dict[str, str] | None = None,
    ) -> Answer:
        return call(self.identity_port, method, target, body, {**with_token(token), **(headers or {})})

    def image(self, method: str, target: str, body: object = None, token: str | None = None) -> Answer:
        """Directly, past the gateway."""
        return call(self.image_port, method, target, body, with_token(token))

    def images(self) -> dict[str, dict[str, Any]]:
        """All images of the site, of all projects, by name: what its administrator sees."""
        answer = self.image("GET", "/v2/images?visibility=all", token=self.token(ADMIN))
        assert answer.status == 200, answer.body
        return {image["name"]: image for image in answer.json["images"]}

    # -- starting ------------------------------------------------------------------------------------------

    def _configure(self, name: str, text: str) -> None:
        filled = text.format(
            folder=self.folder,
            environment=self._environment,
            identity=self.identity_url,
            admin=ADMIN,
            password=PASSWORD,
        )
        (self.folder / f"{name}.conf").write_text(filled)
        if name == "glance":  # it reads a folder, and that file in it
            (self.folder / "glance").mkdir()
            (self.folder / "glance" / "glance-api.conf").write_text(filled)
            for store in ("images", "staging", "tasks"):
                (self.folder / store).mkdir()

    def _manage(self, name: str, *words: str) -> None:
        program = self._environment / "bin" / f"{name}-manage"
        argv = [str(program), "--config-file", f"{self.folder}/{name}.conf", *words]
        done = subprocess.run(argv, env=_variables(), capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr

    def _serve(self, module: str, port: int, **variables: str) -> None:
        argv = [str(self._environment / "bin" / "python"), "-W", "ignore", str(_SERVE), module, str(port)]
        with (self.folder / "served.log").open("ab") as log:
            self._processes.append(subprocess.Popen(argv, env=_variables() | variables, stdout=log, stderr=log))

    def _add_projects(self) -> None:
        admin = self.token(ADMIN)
        roles = self.identity("GET", "/v3/roles?name=member", token=admin).json["roles"]
        for name in PROJECTS:
            project = {"project": {"name": name, "domain_id": _DEFAULT}}
            self.projects[name] = self.identity("POST", "/v3/projects", project, admin).json["project"]["id"]
            user = {"user": {"name": name, "domain_id": _DEFAULT, "password": self.password(name)}}
            user_id = self.identity("POST", "/v3/users", user, admin).json["user"]["id"]
            target = f"/v3/projects/{self.projects[name]}/users/{user_id}/roles/{roles[0]['id']}"
            assert self.identity("PUT", target, token=admin).status == 204


def login_body(user: str, password: str, project: str) -> dict[str, Any]:
    domain = {"id": _DEFAULT}
    who = {"name": user, "domain": domain, "password": password}
    return {
        "auth": {
            "identity": {"methods": ["password"], "password": {"user": who}},
            "scope": {"project": {"name": project, "domain": domain}},
        }
    }


def with_token(token: str | None) -> dict[str, str]:
    return {"X-Auth-Token": token} if token is not None else {}


def call(port: int, method: str, target: str, body: object, headers: dict[str, str]) -> Answer:
    data = None if body is None else body if isinstance(body, bytes) else json.dumps(body).encode()
    plain = isinstance(body, bytes | None)
    kind = {} if data is None else {"Content-Type": "application/octet-stream" if plain else "application/json"}
    return asked(("127.0.0.1", port), method, target, data, {**kind, **headers})


def _variables() -> dict[str, str]:
    return {name: os.environ[name] for name in ("PATH", "HOME", "LANG") if name in os.environ} | {
        "PYTHONWARNINGS": "ignore"
    }


def _listens(port: int) -> bool:
    with contextlib.suppress(OSError):
        asked(("127.0.0.1", port), "GET", "/")
        return True
    return False

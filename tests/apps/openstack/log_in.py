"""Prints a new token of a site's own keystone as a header: log_in.py KEYSTONE FOLDER_OF_PASSWORDS [USER].

Without USER, it logs in as the user whom this site has for the client of the operation (CHEOPS_CLIENT, the name of its
project). What it cannot log in ends with an exit code other than 0.
"""

import http.client
import json
import os
import sys
from pathlib import Path
from urllib.parse import urlsplit

keystone, folder, *user = sys.argv[1:]
name = user[0] if user else os.environ["CHEOPS_CLIENT"]
if "/" in name:
    sys.exit(f"'{name}' is not the name of a project")
domain = {"id": "default"}
who = {"name": name, "domain": domain, "password": (Path(folder) / name).read_text()}
scope = {"project": {"name": name, "domain": domain}}
body = {"auth": {"identity": {"methods": ["password"], "password": {"user": who}}, "scope": scope}}
connection = http.client.HTTPConnection(urlsplit(keystone).netloc, timeout=20)
connection.request("POST", "/v3/auth/tokens", json.dumps(body), {"Content-Type": "application/json"})
response = connection.getresponse()
if response.status != 201:
    sys.exit(f"keystone refused the login of {name}: {response.status}")
sys.stdout.write(f"X-Auth-Token: {response.headers['X-Subject-Token']}\n")

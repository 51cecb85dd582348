"""Serves one of OpenStack's WSGI applications: serve.py MODULE PORT. Runs in OpenStack's own environment."""

import sys
from importlib import import_module

import waitress  # type: ignore[import-not-found,import-untyped,unused-ignore]

module, port = sys.argv[1:]
sys.argv = [module]  # the application reads the command line of its process for options
waitress.serve(import_module(module).application, host="127.0.0.1", port=int(port), threads=4)

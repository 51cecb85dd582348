"""Resource types that tests use: plain files, and Redis. `@FOLDER@` is the folder of the site."""

from typing import Any

# `set` replaces, `add` is ordered.
FILE: dict[str, Any] = {
    "shell": True,
    "allow": ["..."],
    "cwd": "@FOLDER@",
    "read": "cat __ID__",
    "reset": ": > __ID__",
    "matrix": [
        {"before": "set", "after": "set", "result": "take-one"},
        {"before": "set", "after": "add", "result": "take-both-keep-order"},
    ],
}

COUNTER_MATRIX = [
    {"before": "set", "after": "set", "result": "take-one"},
    {"before": "set", "after": "inc", "result": "take-both-keep-order"},
    {"before": "inc", "after": "inc", "result": "take-both"},
]

REDIS: dict[str, Any] = {
    "allow": ["redis-cli -e set * *", "redis-cli -e incrby * *", "redis-cli -e sadd * *"],
    "read": "redis-cli get __ID__",
    "reset": "redis-cli del __ID__",
    "retry_on": ["Could not connect to Redis"],
    "matrix": COUNTER_MATRIX,
}

# Each increment adds one byte to a file, so a file's length is a counter; `true` and `false` do nothing.
TALLY: dict[str, Any] = {
    "shell": True,
    "allow": ["..."],
    "cwd": "@FOLDER@",
    "read": "wc -c < __ID__",
    "reset": "rm -f __ID__",
    "matrix": COUNTER_MATRIX,
}

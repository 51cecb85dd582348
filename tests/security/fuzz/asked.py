"""Valid requests to every kind of route of an agent, from which inputs are made."""

from tests.security.fuzz import samples


def _requests() -> tuple[bytes, ...]:
    json_, here = b"Content-Type: application/json", b"/api/v1/resources/n"
    multi = b"Content-Type: multipart/form-data; boundary=XX"
    posts = [
        (b"POST " + here + b"/operations?wait=first&timeout=1", json_, samples.API_BODIES[0]),
        (b"POST " + here + b"/operations?wait=none", multi, samples.MULTIPART[0]),
        (b"POST " + here + b"/resolve", json_, samples.API_BODIES[2]),
        (b"PUT " + here + b"/sites", json_, samples.API_BODIES[3]),
        (b"POST /exec/n", multi, samples.MULTIPART[0]),
        (b"POST /show/n", multi, samples.MULTIPART[0]),
        (b"POST /peer/heartbeat", json_, samples.HEARTBEATS[1]),
        (b"POST /peer/messages", json_, samples.ENVELOPES[0]),
        (b"POST /db/cheops/_bulk_docs", json_, samples.BULK[0]),
        (b"POST /db/cheops/_revs_diff", json_, b'{"op/n/here/1/1":["1-a"]}'),
        (b"POST /db/cheops/_bulk_get?revs=true", json_, b'{"docs":[{"id":"op/n/here/1/1"}]}'),
        (b"PUT /db/cheops/_local/x", json_, b'{"a":1}'),
        (b"POST /peer/show", json_, samples.API_BODIES[5]),
        (b"POST /peer/documents", json_, b'{"resource":"n","ids":["op/n/here/1/1"]}'),
        (b"POST /api/v1/tokens", json_, samples.API_BODIES[6]),
        (b"POST /api/v1/dry-run", json_, samples.API_BODIES[0]),
    ]
    gets = (
        b"/api/v1/resources?limit=5&cursor=x", here, here + b"/log", here + b"/operations/here:1", here + b"/explain", b"/api/v1/sites",
        b"/api/v1/sites/here", b"/api/v1/events?since=x", b"/api/v1/checks", b"/api/v1/replicants", b"/metrics", b"/healthz", b"/readyz",
        b"/db/cheops/_changes?since=0&limit=5&include_docs=true", b"/db/cheops/op%2Fn%2Fhere%2F1%2F1?open_revs=all", b"/db/", b"/db/cheops",
        b"/peer/files/" + b"0" * 64, b"/db/cheops/_local/x", b"/api/v1/openapi.json", b"/api/v1/matrix/t", b"/api/v1/audit?limit=3",
    )  # fmt: skip
    return (
        *(b"\n".join((line, headers, b"", body)) for line, headers, body in posts),
        *(b"GET " + path + b"\nAccept: application/json\nRange: bytes=0-5\nLast-Event-ID: x-1\n\n" for path in gets),
    )


REQUESTS = _requests()

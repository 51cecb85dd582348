"""Who may say what of a type's resources, in the configuration file. It must be the same at all sites.

types:
  counter:
    policy: {sites: involved, matrix: [paris], operate: [paris, lyon]}

What each means is in cheops/log/policy.py.
"""

from cheops.config.keys import POLICY, given
from cheops.config.names import name_at
from cheops.documents import Value
from cheops.log.policy import Allowed, Policy, Who
from cheops.text import printable, shortened

MAX_SITES = 1_000

# What is replicated by HTTP is asked for at any site, and each hands on what belongs to others; the
# application has its own say in who may do what.
HTTP = Policy(sites=Who.INVOLVED, matrix=Who.CREATOR, operate=Who.MESH)
# Of types that are not configured here nothing is run, and what others allow is not known.
UNKNOWN = Policy(sites=Who.MESH, matrix=Who.MESH, operate=Who.MESH)


def policy_at(value: Value) -> Policy:
    record, default = POLICY.read(value), Policy()
    return Policy(
        given(record, "sites", lambda at: _allowed(at, *Who), default.sites),
        given(record, "matrix", lambda at: _allowed(at, *Who), default.matrix),
        given(record, "operate", lambda at: _allowed(at, Who.INVOLVED, Who.MESH), default.operate),
    )


def _allowed(value: Value, *words: Who) -> Allowed:
    if not value.is_text:
        names = tuple(name_at(item) for item in value.items())
        if len(names) > MAX_SITES:
            raise value.fail(f"at most {MAX_SITES} sites can be named, not {len(names)}")
        return tuple(dict.fromkeys(names))
    text = value.string()
    if text not in words:
        known = ", ".join(word.value for word in words)
        shown = printable(shortened(text))
        raise value.fail(f"expected {known}, or a list of sites such as [site1, site2], found '{shown}'")
    return Who(text)

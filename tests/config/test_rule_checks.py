"""Mistakes of those who write rules: each is refused, with the line and what is wrong."""

import time

import pytest

from cheops.config.rule_syntax import SERVICE_RULES
from cheops.config.service_rules import ServiceRules
from cheops.yaml_file import YamlFileError, parse_yaml


def read(*lines: str) -> ServiceRules:
    return SERVICE_RULES.read(parse_yaml("".join(f"- {line}\n" for line in lines), "site.yaml"))


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("{match: GET /x, is: action, of: service}", "GET is a read, whatever a rule says"),
        ("{match: HEAD /x, is: refuse, why: no}", "HEAD is a read"),
        ("{match: POST /x, is: read, ok: {status: 200}}", "it has no effect"),
        ('{match: POST /x, is: refuse, why: no, after: ["/y"]}', "it has no effect"),
        ('{match: POST /x, is: action, of: service, after: ["/y"]}', "it has no effect"),
        ('{match: POST /x, is: create, of: "/y", name: $.n}', "'name' or 'of', not both"),
        ('{match: "POST /{a**}/x/{b**}", is: put}', r"more than one \*\*"),
        ('{match: "POST /{a}{b}", is: put}', "at most one variable"),
        ('{match: "POST /x?a={b}c", is: put}', "a text or a variable"),
        ('{match: "POST /x?a={b", is: put}', "a text or a variable"),
        ('{match: "POST /x?a&a", is: put}', "a member of the query is there twice"),
        ('{match: "POST /x?a={v}&b={v}", is: put}', "a variable is there twice"),
        ('{match: "POST /{v}?b={v}", is: put}', "a variable is there twice"),
        ("{match: POST /x/../y, is: put}", "no request has this path"),
        ("{match: POST //x, is: put}", "no request has this path"),
        ('{match: POST /x, is: put, header: "X Y"}', "the name of a header"),
        ('{match: POST /x, is: put, of: "/y/{$.a}-{$.b}"}', "refers to one thing at most"),
        ('{match: POST /x, is: put, of: "/../y"}', "without empty parts"),
        ('{match: POST /x, is: put, of: "/y?q"}', "a path without a query"),
        ('{match: POST /x, is: move, to: "/../{$.n}"}', "without empty parts"),
        ("{match: POST /x, opens: u, id: $.u}", "no rule completes a session 'u'"),
        ('{match: "PUT /x/{u}", uses: u}', "no rule opens and completes a session 'u'"),
        ("{match: POST /first, is: put}", "is never used"),
        ("{match: POST /all/x/y, is: put}", "is never used"),
        ('{match: "POST /all/{one}", is: put}', "is never used"),
        ('{match: "POST /any?a=1", is: put}', "is never used"),
        ("{match: POST /v3/kv/put, is: action, of: service}", "'POST /v3/kv/put' comes before it"),
    ],
)
def test_a_mistake_is_refused_where_it_is(line: str, why: str) -> None:
    before = (
        "{match: POST /first, is: put}",
        '{match: "POST /all/{path**}", is: put}',
        "{match: POST /any, is: read}",
        "etcd",
    )
    with pytest.raises(YamlFileError, match=why) as error:
        read(*before, line)
    assert "site.yaml:5:" in str(error.value)


def test_rules_that_only_look_alike_are_taken() -> None:
    read(
        "{match: POST /x, has: $.id, is: put}",
        "{match: POST /x, header: X-Copy, is: refuse, why: no}",
        '{match: "POST /x?a=1", is: put}',
        '{match: "POST /x?a=2", is: put}',
        "{match: POST /x, is: put}",
        '{match: "POST /x?b", is: put}',
        "{match: PUT /x, is: put}",
        '{match: "POST /{name}", is: put}',
        '{match: "POST /{name}/{more}", is: put}',
        '{match: "POST /{path**}", is: put}',
    )


def test_a_rule_is_matched_in_time_that_grows_with_the_path_only() -> None:
    rules = read('{match: "PUT /{a**}/x/{b}/y", is: put}')
    began = time.process_time()
    assert not list(rules.matching("PUT", "/x/y" * 8_000, ""))
    assert time.process_time() - began < 1.0

"""Files with a matrix: two forms that say the same, and complaints that name file, line and place."""

import json
from pathlib import Path

import pytest
import yaml

from cheops.log.matrix import Entry, Matrix, Result
from cheops.matrix_file import MAX_ENTRIES, MAX_TYPES, MatrixFile, read_matrix
from cheops.yaml_file import YamlFileError
from tests.support.command import ROOT, run_here

EXAMPLES = sorted((ROOT / "examples" / "matrices").iterdir())

JSON = """\
{
  "ResolutionMatrix": [
    {"Before": "set", "After": "inc", "Result": "take-both-keep-order", "Concurrent": "take-both"},
    {"Before": "inc", "After": "inc", "Result": "take-both-any-order"}
  ]
}
"""

YAML = """\
# a comment
types: [set, inc]
matrix:
  - {before: set, after: inc, result: take-both-keep-order, concurrent: take-both}
  - before: inc
    after: inc
    result: take-both
"""

ENTRIES = (
    Entry("set", "inc", Result.KEEP_ORDER, concurrent_both=True),
    Entry("inc", "inc", Result.TAKE_BOTH),
)


def read(directory: Path, text: str) -> MatrixFile:
    path = directory / "matrix"
    path.write_text(text, encoding="utf-8")
    return read_matrix(path)


@pytest.mark.parametrize(
    "text",
    [
        JSON,
        YAML,
        json.dumps(json.loads(JSON)),
        json.dumps(json.loads(JSON), indent="\t"),
        JSON.replace("    ", "\t\t").replace(": ", ":\t").replace("\n", "\r\n"),
        "\ufeff" + JSON,
        JSON.replace("ResolutionMatrix", "resolutionMatrix").replace("Before", "before"),
        JSON.replace("ResolutionMatrix", "matrix").replace("Result", "result"),
        YAML.replace("matrix:", "ResolutionMatrix:").replace("types", "Types"),
        YAML.replace("matrix:", "Matrix:").replace("after", "After").replace("concurrent", "Concurrent"),
    ],
    ids=[
        "papers' JSON",
        "YAML",
        "JSON on one line",
        "JSON with tabs",
        "tabs anywhere, CRLF",
        "byte order mark",
        "JSON without capitals",
        "JSON with YAML's names",
        "YAML with the papers' name",
        "YAML with capitals",
    ],
)
def test_all_forms_say_the_same(tmp_path: Path, text: str) -> None:
    made = read(tmp_path, text)
    assert made.matrix.entries == ENTRIES
    assert made.matrix.hash == Matrix(ENTRIES).hash
    assert made.types == ("set", "inc")


def test_types_may_list_more_than_the_entries_mention(tmp_path: Path) -> None:
    made = read(tmp_path, "types: [dec, a]\nmatrix: [{before: a, after: a, result: take-one}]")
    assert made.types == ("dec", "a")
    assert made.matrix.types == ("a",)


def test_types_are_spelled_as_in_the_file(tmp_path: Path) -> None:
    text = "matrix: [{before: no, after: 1.0, result: take-one}, {before: scale up, after: é, result: take-one}]"
    assert read(tmp_path, text).types == ("no", "1.0", "scale up", "é")


def test_an_entry_may_be_repeated(tmp_path: Path) -> None:
    entry = "{before: a, after: b, result: take-both}"
    assert read(tmp_path, f"matrix: [{entry}, {entry}]").types == ("a", "b")


def test_a_matrix_may_be_empty(tmp_path: Path) -> None:
    made = read(tmp_path, '{"ResolutionMatrix": []}')
    assert (made.matrix.entries, made.types) == ((), ())
    assert run_here("matrix", "check", str(tmp_path / "matrix")).out.startswith("no types are mentioned")


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.name)
def test_each_example_is_read(path: Path) -> None:
    assert read_matrix(path).matrix.entries


def test_the_examples_mean_what_the_report_says() -> None:
    made = {path.name: read_matrix(path).matrix for path in EXAMPLES}
    assert set(made) == {"counter.json", "deployment.json", "file.json", "pcounter.yaml", "rest.yaml"}
    assert made["counter.json"].wiped_by("set") == ("inc", "set")
    assert made["counter.json"].commutes("inc", "inc")
    assert made["file.json"].wiped_by("set") == ("add", "set")
    assert made["file.json"].class_of_pair("add", "add") == 3
    assert made["deployment.json"].wiped_by("apply") == ("apply",)
    assert made["pcounter.yaml"].wiped_by("set") == ("dec", "set")
    assert made["rest.yaml"].wiped_by("put") == ("patch", "put")
    assert not made["rest.yaml"].is_replace_type("create")


def papers(*entries: str) -> str:
    """A file in the papers' form, with one entry a line: the first on line 2."""
    return '{"ResolutionMatrix": [\n' + ",\n".join(f"{{{entry}}}" for entry in entries) + "\n]}"


KEEP = '"Before": "set", "After": "inc", "Result": "take-both-keep-order"'
RESULTS = "take-one, take-both, take-both-keep-order, take-both-reverse-order, take-both-any-order"

BAD = [
    ("", "1: the file is empty"),
    ("- a", "1: expected names with values, found a list"),
    ("{}", "1: 'matrix' (or 'ResolutionMatrix') is missing"),
    ("types: [a]", "1: 'matrix' (or 'ResolutionMatrix') is missing"),
    ("matrix:", "1: matrix: expected a list, found nothing"),
    ("matrix: {a: b}", "1: matrix: expected a list, found names with values"),
    ("matrix: [a]", "1: matrix[0]: expected names with values, found 'a'"),
    ("matrix: []\ntypes: a", "2: types: expected a list, found 'a'"),
    (
        "matrix: []\ntype: [a]",
        "2: type: unknown key; did you mean 'types'? Known here: matrix, resolutionMatrix, types",
    ),
    (
        '{"ResolutionMatrx": []}',
        "1: ResolutionMatrx: unknown key; did you mean 'ResolutionMatrix'? Known here: Matrix, ResolutionMatrix, Types",
    ),
    (
        "matrix: []\nResolutionMatrix: []",
        "2: ResolutionMatrix: the matrix is given twice; keep one of 'matrix' and 'ResolutionMatrix'",
    ),
    ("Matrix: []\nmatrix: []", "2: matrix: this is given twice, also as 'Matrix'"),
    ("matrix: []\nmatrix: []", "2: 'matrix' is given twice"),
    (papers('"Before": "a", "After": "a"'), "2: ResolutionMatrix[0]: 'Result' is missing"),
    ("matrix:\n  - {before: a, result: take-one}", "2: matrix[0]: 'after' is missing"),
    ("matrix:\n  - {}", "2: matrix[0]: 'before' is missing"),
    (
        papers(KEEP, KEEP + ', "Why": "x"'),
        "3: ResolutionMatrix[1].Why: unknown key. Known here: After, Before, Concurrent, Result",
    ),
    (
        "matrix:\n  - {before: a, after: a, reslt: take-one}",
        "2: matrix[0].reslt: unknown key; did you mean 'result'? Known here: after, before, concurrent, result",
    ),
    (
        "matrix:\n  - {before: a, after: a,\n     Before: b, result: take-one}",
        "2: matrix[0].before: this is given twice, also as 'Before'",
    ),
    (
        papers('"Before": "a", "After": "a", "Result": "take-all"'),
        f"2: ResolutionMatrix[0].Result: unknown result 'take-all'; known results: {RESULTS}",
    ),
    (
        papers('"Before": "a", "After": "a", "Result": "\\u001b[31m' + "x" * 99 + '"'),
        f"2: ResolutionMatrix[0].Result: unknown result '�[31m{'x' * 54}…'; known results: {RESULTS}",
    ),
    (
        papers('"Before": "a", "After": "a", "Result": null'),
        "2: ResolutionMatrix[0].Result: expected a text, found nothing",
    ),
    (
        papers(KEEP + ', "Concurrent": "take-one"'),
        "2: ResolutionMatrix[0].Concurrent: unknown value 'take-one'; write take-both, or leave the key out",
    ),
    (
        papers('"Before": "a", "After": "a", "Result": "take-one", "Concurrent": "take-both"'),
        "2: ResolutionMatrix[0]: (a, a) take-one: Concurrent goes with keep-order or reverse-order only",
    ),
    (
        papers('"Before": "!force", "After": "a", "Result": "take-one"'),
        "2: ResolutionMatrix[0].Before: '!force': names that start with '!' are reserved",
    ),
    (
        papers('"Before": "a", "After": "*", "Result": "take-one"'),
        "2: ResolutionMatrix[0].After: '*': names that start with '*' are reserved",
    ),
    (
        papers('"Before": "", "After": "a", "Result": "take-one"'),
        "2: ResolutionMatrix[0].Before: a name cannot be empty",
    ),
    (
        papers('"Before": "a\tb", "After": "a", "Result": "take-one"'),
        "2: ResolutionMatrix[0].Before: a name cannot hold the invisible character U+0009",
    ),
    (
        papers('"Before": "a", "After": "a\\u200bb", "Result": "take-one"'),
        "2: ResolutionMatrix[0].After: a name cannot hold the invisible character U+200B",
    ),
    (
        papers(f'"Before": "{"a" * 101}", "After": "a", "Result": "take-one"'),
        "2: ResolutionMatrix[0].Before: a type has at most 100 characters",
    ),
    (
        papers('"Before": ["a"], "After": "a", "Result": "take-one"'),
        "2: ResolutionMatrix[0].Before: expected a text, found a list",
    ),
    (
        "types:\n  - a\n  - '!delete'\nmatrix: []",
        "3: types[1]: '!delete': names that start with '!' are reserved",
    ),
    ("types:\n  - a\n  - a\nmatrix: []", "3: types[1]: 'a' is given twice"),
    (
        "types: [set, inc]\nmatrix:\n  - {before: set, after: Inc, result: take-one}",
        "3: matrix[0].after: unknown type 'Inc'; did you mean 'inc'? Types of this file: inc, set",
    ),
    (
        papers(KEEP, '"Before": "inc", "After": "set", "Result": "take-both"'),
        "3: ResolutionMatrix[1]: (inc, set) take-both contradicts (inc, set) take-both-reverse-order (see line 2)",
    ),
    (
        papers('"Before": "a", "After": "a", "Result": "take-both-keep-order"'),
        "2: ResolutionMatrix[0]: (a, a) take-both-keep-order: a type has no order with itself; leave the pair out, and it is ordered by time",
    ),
    (
        papers(
            '"Before": "x", "After": "z", "Result": "take-both"',
            '"Before": "z", "After": "y", "Result": "take-both-keep-order"',
            '"Before": "y", "After": "x", "Result": "take-both-keep-order"',
        ),
        "2: ResolutionMatrix[0]: (x, z) take-both contradicts the other entries, by which 'z' replaces 'x'",
    ),
    (
        "types: [" + ", ".join(f"t{n}" for n in range(MAX_TYPES + 1)) + "]\nmatrix: []",
        "1: types[100]: at most 100 are accepted",
    ),
    (
        papers(*(f'"Before": "a", "After": "t{n}", "Result": "take-both"' for n in range(MAX_TYPES))),
        "1: ResolutionMatrix: 101 types are mentioned; at most 100 are accepted",
    ),
    (
        "matrix:\n- &e {before: a, after: a, result: take-one}\n" + "- *e\n" * MAX_ENTRIES,
        "2: matrix[10000]: at most 10,000 are accepted",
    ),
]


@pytest.mark.parametrize(("text", "complaint"), BAD, ids=[complaint for _, complaint in BAD])
def test_a_bad_matrix_is_refused_with_file_and_line(tmp_path: Path, text: str, complaint: str) -> None:
    with pytest.raises(YamlFileError) as refused:
        read(tmp_path, text)
    assert str(refused.value) == f"{tmp_path / 'matrix'}:{complaint}"


@pytest.mark.parametrize("text", ['{"ResolutionMatrix": [', '{"ResolutionMatrix": []} trailing', "\tmatrix: []"])
def test_what_is_neither_json_nor_yaml_is_refused(tmp_path: Path, text: str) -> None:
    with pytest.raises(YamlFileError, match="not YAML"):
        read(tmp_path, text)


# -- cheops matrix check ---------------------------------------------------------------------------------------


def test_a_bad_matrix_ends_the_command_with_one(tmp_path: Path) -> None:
    path = tmp_path / "matrix.yaml"
    path.write_text("matrix:\n  - {before: a, after: a, result: take-two}\n")
    ran = run_here("matrix", "check", str(path))
    assert (ran.code, ran.out) == (1, "")
    assert ran.err.startswith(f"error: {path}:2: matrix[0].result: unknown result 'take-two'")


def test_what_follows_is_marked_as_inferred(tmp_path: Path) -> None:
    path = tmp_path / "matrix.yaml"
    path.write_text(
        "matrix:\n"
        "  - {before: wipe, after: set, result: take-both-keep-order}\n"
        "  - {before: set, after: inc, result: take-both-keep-order}\n"
        "  - {before: put, after: set, result: take-one}\n"
    )
    data = json.loads(run_here("matrix", "check", str(path), "-o", "json").out)
    said = {(pair["before"], pair["after"]): (pair["result"], pair["inferred"]) for pair in data["pairs"]}
    assert said["wipe", "set"] == ("take-both-keep-order", False)
    assert said["set", "wipe"] == ("take-both-reverse-order", True)  # the mirror
    assert said["wipe", "inc"] == ("take-both-keep-order", True)  # by transitivity
    assert said["inc", "put"] == ("take-both-reverse-order", True)
    assert said["set", "set"] == ("take-one", True)  # a replace type replaces itself
    assert said["inc", "inc"] == (None, True)  # undefined
    assert data["replaces"]["put"] == ["inc", "put", "set"]
    assert "inc" not in data["replaces"]


def test_an_exception_for_what_is_concurrent_is_shown(tmp_path: Path) -> None:
    path = tmp_path / "matrix.json"
    path.write_text(JSON)
    out = run_here("matrix", "check", str(path)).out
    assert "set replaces inc, set; if concurrent with inc, both stay, set first\n" in out
    pairs = json.loads(run_here("matrix", "check", str(path), "-o", "json").out)["pairs"]
    assert [pair["concurrent"] for pair in pairs] == [None, "take-both", "take-both", None]


def test_the_largest_matrix_is_checked(tmp_path: Path) -> None:
    names = [f"t{number}" for number in range(MAX_TYPES)]
    rows = [f"- {{before: {a}, after: {b}, result: take-both}}" for a in names for b in names]
    path = tmp_path / "matrix.yaml"
    path.write_text("matrix:\n" + "\n".join(rows))
    ran = run_here("matrix", "check", str(path))
    assert ran.code == 0
    assert ran.out.count("both 1") == MAX_ENTRIES


@pytest.mark.parametrize(
    ("types", "complaint"),
    [
        ("set,,inc", "error: --types: a name cannot be empty\n"),
        ("!force", "error: --types: '!force': names that start with '!' are reserved\n"),
        (
            ",".join(f"t{number}" for number in range(99)),
            "error: --types: 101 types with those of the file; at most 100 are accepted\n",
        ),
    ],
)
def test_bad_types_are_refused(types: str, complaint: str) -> None:
    ran = run_here("matrix", "check", "examples/matrices/counter.json", "--types", types)
    assert (ran.code, ran.out, ran.err) == (1, "", complaint)


def test_json_and_yaml_hold_the_same_data() -> None:
    argv = ("matrix", "check", "examples/matrices/rest.yaml", "-o")
    assert json.loads(run_here(*argv, "json").out) == yaml.safe_load(run_here(*argv, "yaml").out)

"""Meta-ids: unmistakable, and found wherever they stand."""

import uuid

from hypothesis import given
from hypothesis import strategies as st

from cheops.backends.http.ids import RANDOM_BYTES, is_meta_id, may_be_made_at, meta_id_of, meta_ids_in, new_meta_id

RANDOMNESS = st.binary(min_size=RANDOM_BYTES, max_size=RANDOM_BYTES)


@given(st.text(), RANDOMNESS)
def test_a_meta_id_is_a_uuid_of_version_8(site: str, randomness: bytes) -> None:
    made = uuid.UUID(new_meta_id(site.encode("utf-8", "replace").decode(), randomness))
    assert (made.version, made.variant) == (8, uuid.RFC_4122)


@given(st.sampled_from(["site1", "DC 1", "é"]), RANDOMNESS, st.sampled_from('/"?&= <>;,\n'))
def test_it_is_found_between_any_signs_and_in_either_case(site: str, randomness: bytes, sign: str) -> None:
    made = new_meta_id(site, randomness)
    assert meta_ids_in(f"x{sign}{made}{sign}{made.upper()}") == (made,)
    assert may_be_made_at(made, site)


@given(RANDOMNESS)
def test_it_is_not_found_in_longer_digits(randomness: bytes) -> None:
    made = new_meta_id("site1", randomness)
    assert not meta_ids_in(f"{made}0")
    assert not meta_ids_in(f"f{made}")


@given(st.uuids())
def test_no_other_uuid_is_taken_for_one(other: uuid.UUID) -> None:
    assert not is_meta_id(str(other))


@given(RANDOMNESS, RANDOMNESS)
def test_different_randomness_gives_different_ids(one: bytes, other: bytes) -> None:
    same = one[0] & 0x03 == other[0] & 0x03 and one[1:] == other[1:]  # 74 of the 80 bits are used
    assert (new_meta_id("a", one) == new_meta_id("a", other)) is same


def test_what_clients_name_has_one_meta_id() -> None:
    assert meta_id_of("path", "image", "/a") == meta_id_of("path", "image", "/a")
    assert meta_id_of("path", "image", "/a") != meta_id_of("path", "image/", "a")
    assert is_meta_id(meta_id_of("path", "image", "/a"))

"""What a stolen site says of others does not count: records and decisions are taken by their proofs alone."""

import time
from dataclasses import dataclass
from pathlib import Path

import pytest
from msgspec.structs import replace

from cheops.config.security import SecurityConfig
from cheops.errors import ClientError
from cheops.peers.gossip import FUTURE_RECORD, REVOKED_RECORD
from cheops.peers.heartbeat import BAD_ADDRESS, Heartbeat, MembershipRecord, SiteRecord, decode_saved, encode
from cheops.peers.membership import FUTURE_DECISION
from cheops.peers.mesh import Mesh
from cheops.peers.proofs import FORGED_DECISION, FORGED_RECORD, CertificateProofs, sign_decision
from cheops.peers.settings import MeshSettings, Now
from cheops.security.keyring import Keyring
from cheops.security.refusals import Refusals
from tests.security.pki import Pki
from tests.sync.mesh_world import entry

SKEW_MS = MeshSettings().clock_skew_ms


@dataclass
class Site:
    """A site with keys of its own."""

    name: str
    keyring: Keyring
    mesh: Mesh

    @property
    def proofs(self) -> CertificateProofs:
        return CertificateProofs(self.keyring)

    def record(self, **changes: object) -> SiteRecord:
        """Its own record with these changes, signed by itself."""
        return self.proofs.sign_record(replace(self.mesh.own, **{"revision": self.mesh.own.revision + 1, **changes}))


@dataclass
class Stage:
    """An authority, its key at site a, and a wall clock that stands still unless a test moves it."""

    folder: Path
    pki: Pki
    wall_ms: float

    def now(self) -> Now:
        return Now(1_000.0, self.wall_ms)

    def site(self, name: str, *, has_key: bool = False, saved: bytes | None = None, pki: Pki | None = None) -> Site:
        path = self.folder / name
        if saved is None:
            (pki or self.pki).site(path, name, made_s=self.wall_ms / 1000)
        ca_key = self.pki.write(self.folder / "ca") if has_key else None
        keyring = Keyring(SecurityConfig(folder=path, ca_key=ca_key), name, Refusals())
        record = replace(entry(name), issues=keyring.issues)
        before = decode_saved(saved) if saved else None
        mesh = Mesh(record, {}, self.now(), saved=before, proofs=CertificateProofs(keyring))
        return Site(name, keyring, mesh)

    def meet(self, *sites: Site) -> None:
        """Each sends every other one a heartbeat, and takes the answer."""
        for one in sites:
            for other in sites:
                if one is not other:
                    hello(other.mesh, one.name, self.wall_ms, entries=(one.mesh.own,))


def hello(mesh: Mesh, sender: str, at_ms: float, **content: object) -> Heartbeat:
    """A heartbeat with this content, as a site with a certificate can send it; returns the answer."""
    beat = Heartbeat(sender, "1", 1, int(at_ms), at_ms, **content)  # type: ignore[arg-type]
    return mesh.received_probe(beat, Now(1_000.0, at_ms))[0]


def reasons(mesh: Mesh) -> list[tuple[str, str]]:
    return [(refused.sender, refused.reason) for refused in mesh.refused_records()]


@pytest.fixture
def stage(tmp_path: Path) -> Stage:
    return Stage(tmp_path, Pki(), time.time() * 1000)


@pytest.fixture
def sites(stage: Stage) -> tuple[Site, Site, Site]:
    """a has the authority's key; evil is a site like b."""
    a, b, evil = stage.site("a", has_key=True), stage.site("b"), stage.site("evil")
    stage.meet(a, b, evil)
    assert set(a.mesh.known_sites) == {"a", "b", "evil"}
    assert reasons(a.mesh) == []
    return a, b, evil


Sites = tuple[Site, Site, Site]

# -- records -----------------------------------------------------------------------------------------------


def test_nobody_but_the_site_itself_changes_its_address(stage: Stage, sites: Sites) -> None:
    a, b, evil = sites
    true = a.mesh.entry_of("b")
    assert true is not None
    elsewhere = replace(true, url="https://evil.example:1", revision=true.revision + 1)
    forgeries = [
        elsewhere,  # with the signature of what b said
        replace(elsewhere, signature=b""),
        replace(elsewhere, certificate=b"", signature=b""),
        replace(evil.proofs.sign_record(elsewhere), certificate=true.certificate),  # signed by another site
        evil.proofs.sign_record(elsewhere),  # with the certificate of another site
    ]
    for forged in forgeries:
        hello(a.mesh, "evil", stage.wall_ms, entries=(forged,))
        assert reasons(a.mesh) == [("evil", FORGED_RECORD)]
        assert a.mesh.entry_of("b") == true
    moved = b.record(url="https://new.example:1")
    hello(a.mesh, "evil", stage.wall_ms, entries=(moved,))  # whoever passes it on
    assert a.mesh.entry_of("b") == moved


def test_a_name_without_a_certificate_is_no_site(stage: Stage, sites: Sites) -> None:
    a, _, evil = sites
    stranger = stage.site("stranger", pki=Pki())
    invented = [evil.proofs.sign_record(replace(entry(f"x{n}"), revision=int(stage.wall_ms))) for n in range(500)]
    hello(a.mesh, "evil", stage.wall_ms, entries=(*invented, stranger.mesh.own))
    hello(a.mesh, "evil", stage.wall_ms, entries=(stranger.mesh.own,), beats=(("ghost", 7),))
    assert set(a.mesh.known_sites) == {"a", "b", "evil"}
    assert {reason for _, reason in reasons(a.mesh)} == {FORGED_RECORD}
    probes, _ = a.mesh.tick(stage.now(), lambda most: most - 1)
    assert {probe.to_site for probe in probes} <= {"b", "evil"}


def test_of_many_forged_records_only_a_few_cost_a_signature_check(stage: Stage, sites: Sites) -> None:
    a, b, _ = sites
    mesh_proofs = a.mesh._proofs
    assert isinstance(mesh_proofs, CertificateProofs)
    before = mesh_proofs.verified
    forged = [replace(b.record(), revision=b.mesh.own.revision + n) for n in range(2, 500)]
    hello(a.mesh, "evil", stage.wall_ms, entries=tuple(forged))
    assert 0 < mesh_proofs.verified - before <= 8
    seen = mesh_proofs.verified
    hello(a.mesh, "b", stage.wall_ms, entries=(b.mesh.own,))  # known: not verified again
    assert mesh_proofs.verified == seen


def test_no_site_pushes_a_record_out_of_reach(stage: Stage, sites: Sites) -> None:
    """Not even the site itself, with a clock that is wrong."""
    a, b, _ = sites
    far = b.record(revision=int(stage.wall_ms + SKEW_MS + 1_000), url="https://far.example")
    hello(a.mesh, "b", stage.wall_ms, entries=(far,))
    assert reasons(a.mesh) == [("b", FUTURE_RECORD)]
    near = b.record(revision=int(stage.wall_ms + SKEW_MS - 1_000), url="https://near.example")
    hello(a.mesh, "b", stage.wall_ms, entries=(near,))
    assert a.mesh.entry_of("b") == near
    saved = encode(replace(b.mesh.saved(), own=b.record(revision=2**52)))  # of a start in the far future
    again = stage.site("b", saved=saved)
    assert again.mesh.own.revision <= stage.wall_ms


def test_a_site_goes_on_only_from_what_it_signed_itself(stage: Stage, sites: Sites) -> None:
    a, b, evil = sites
    before = b.mesh.own.revision
    hello(b.mesh, "evil", stage.wall_ms, seen=(before + 5_000, int(stage.wall_ms)))
    forged = evil.proofs.sign_record(replace(b.mesh.own, revision=before + 5_000))
    hello(b.mesh, "evil", stage.wall_ms, entries=(forged,))
    assert b.mesh.own.revision == before
    hello(b.mesh, "evil", stage.wall_ms, seen=(0, 2**52))  # nor does its beat follow
    assert hello(b.mesh, "a", stage.wall_ms).beat <= stage.wall_ms + SKEW_MS
    # Its clock was set back and it lost its store: site a still has what it said, and gives it back.
    hello(a.mesh, "b", stage.wall_ms, entries=(b.record(revision=before + 5_000),))
    answer = hello(a.mesh, "b", stage.wall_ms)
    assert [one.revision for one in answer.entries if one.name == "b"] == [before + 5_000]
    hello(b.mesh, "a", stage.wall_ms, entries=answer.entries)
    assert b.mesh.own.revision == before + 5_001


BAD_URLS = [
    "https://127.0.0.1 redir http://evil :28302",
    "https://b.example:99999",
    "https://b.example:0",
    "https://b.example/path",
    "https://user@b.example",
    "https://b.example\r\nx: y",
    "https://b.example:8079\n",
    "https://B.example",
    "https://b.example:443",
    "https://b'; maxconn 1",
    "https://[::1%eth0]:1",
    "https://0.0.0.0:1",
    "https://",
]


@pytest.mark.parametrize("url", BAD_URLS)
def test_an_address_that_is_none_costs_the_record(stage: Stage, sites: Sites, url: str) -> None:
    a, b, _ = sites
    hello(a.mesh, "b", stage.wall_ms, entries=(b.record(url=url),))
    hello(a.mesh, "b", stage.wall_ms, entries=(b.record(services=(("image", url),)),))
    assert reasons(a.mesh) == [("b", BAD_ADDRESS), ("b", BAD_ADDRESS)]
    assert a.mesh.entry_of("b") == b.mesh.own


def test_an_address_without_tls_costs_the_record(stage: Stage, sites: Sites) -> None:
    a, b, _ = sites
    hello(a.mesh, "b", stage.wall_ms, entries=(b.record(url="http://b.example"),))
    assert reasons(a.mesh) == [("b", FORGED_RECORD)]


def test_what_was_saved_is_verified_again(stage: Stage, sites: Sites) -> None:
    a = sites[0]
    saved = a.mesh.saved()
    again = stage.site("a", has_key=True, saved=encode(saved))
    assert again.mesh.own == a.mesh.own
    assert set(again.mesh.known_sites) == {"a", "b", "evil"}
    altered = tuple(replace(one, url="https://evil.example") if one.name == "b" else one for one in saved.entries)
    again = stage.site("a", has_key=True, saved=encode(replace(saved, entries=altered)))
    assert set(again.mesh.known_sites) == {"a", "evil"}


def test_a_new_certificate_of_the_same_site_is_announced(stage: Stage, sites: Sites) -> None:
    a, b, _ = sites
    stage.pki.site(stage.folder / "b", "b")
    proofs = b.mesh._proofs
    assert isinstance(proofs, CertificateProofs)
    b.keyring.changed.append(proofs.reset)
    b.keyring.changed.append(b.mesh.describe)
    b.keyring.reload()
    hello(a.mesh, "b", stage.wall_ms, entries=(b.mesh.own,))
    found = a.mesh.entry_of("b")
    assert found is not None
    assert found.certificate == b.keyring.identity.der


# -- decisions ---------------------------------------------------------------------------------------------


def forget(stage: Stage, site: str, *, at_ms: float = 0, forgotten: bool = True) -> MembershipRecord:
    """As an operator with the authority's folder does."""
    return sign_decision(MembershipRecord(site, int(at_ms or stage.wall_ms), forgotten), stage.pki.authority)


def test_only_the_authority_decides(stage: Stage, sites: Sites) -> None:
    a, b, evil = sites
    unsigned = MembershipRecord("b", int(stage.wall_ms), forgotten=True)
    signed = forget(stage, "b")
    forgeries = [
        unsigned,
        sign_decision(unsigned, Pki().authority),
        replace(sign_decision(unsigned, Pki().authority), authority=signed.authority),
        replace(signed, name="a"),
        replace(signed, stamp_ms=signed.stamp_ms + 1),
        replace(forget(stage, "b", forgotten=False), forgotten=True),
        replace(signed, signature=evil.keyring.folder.signing_key.sign(b"x")),
    ]
    for forged in forgeries:
        hello(a.mesh, "evil", stage.wall_ms, members=(forged,))
        assert reasons(a.mesh) == [("evil", FORGED_DECISION)]
        assert a.mesh.forgotten == frozenset()
    with pytest.raises(ClientError, match=r"b does not have the key of an authority .* do it at a, or from anywhere"):
        b.mesh.forget("evil", stage.now())
    hello(b.mesh, "evil", stage.wall_ms, members=(forget(stage, "evil"),))  # even if it brings its own end
    assert b.mesh.forgotten == {"evil"}


def test_invented_decisions_push_no_revocation_out(stage: Stage, sites: Sites) -> None:
    a, b, _ = sites
    a.mesh.forget("evil", stage.now())
    invented = [MembershipRecord(f"x{n}", int(stage.wall_ms) + 10_000, forgotten=True) for n in range(4_224)]
    for start in range(0, len(invented), 64):
        hello(a.mesh, "b", stage.wall_ms, members=tuple(invented[start : start + 64]))
    assert a.mesh.forgotten == {"evil"}
    answer = hello(a.mesh, "b", stage.wall_ms)
    hello(b.mesh, "a", stage.wall_ms, members=answer.members)
    assert b.mesh.forgotten == {"evil"}


def test_a_decision_is_never_so_late_that_it_cannot_be_outdone(stage: Stage, sites: Sites) -> None:
    a, b, _ = sites
    for stamp_ms in (2**53, stage.wall_ms + SKEW_MS + 1_000):
        hello(a.mesh, "evil", stage.wall_ms, members=(forget(stage, "b", at_ms=stamp_ms),))
        assert reasons(a.mesh) == [("evil", FUTURE_DECISION)]
    hello(a.mesh, "evil", stage.wall_ms, members=(forget(stage, "b", at_ms=stage.wall_ms + SKEW_MS - 1_000),))
    assert a.mesh.forgotten == {"b"}
    a.mesh.admit("b", stage.now())
    decision = a.mesh.member_of("b")
    assert decision is not None
    hello(b.mesh, "a", stage.wall_ms + 1_000, members=(decision,))
    assert b.mesh.member_of("b") == decision
    assert not a.mesh.forgotten


def test_a_revoked_certificate_proves_nothing(stage: Stage, sites: Sites) -> None:
    a, _, evil = sites
    old = evil.record()
    a.mesh.forget("evil", stage.now())
    a.mesh.admit("evil", stage.now())
    hello(a.mesh, "b", stage.wall_ms, entries=(old,))
    assert reasons(a.mesh) == [("b", REVOKED_RECORD)]
    assert a.mesh.entry_of("evil") is None
    stage.wall_ms += 10_000
    new = stage.site("evil")
    hello(a.mesh, "b", stage.wall_ms, entries=(new.mesh.own,))
    assert a.mesh.entry_of("evil") == new.mesh.own
    # A site that missed the first of both decisions drops the old record with the second.
    assert sites[1].mesh.entry_of("evil") is not None
    decision = a.mesh.member_of("evil")
    assert decision is not None
    hello(sites[1].mesh, "a", stage.wall_ms, members=(decision,))
    assert sites[1].mesh.entry_of("evil") is None


def test_a_refused_probe_brings_signed_decisions_only(stage: Stage, sites: Sites) -> None:
    _, b, _ = sites
    b.mesh.learn_own_membership(MembershipRecord("b", int(stage.wall_ms), forgotten=True), "evil", stage.now())
    assert reasons(b.mesh) == [("evil", FORGED_DECISION)]
    assert not b.mesh.is_forgotten
    b.mesh.learn_own_membership(forget(stage, "b"), "a", stage.now())
    assert b.mesh.is_forgotten


def test_decisions_outlive_their_authority(stage: Stage, sites: Sites) -> None:
    """One authority replaces another: sites keep what they had verified, and a site with the new key signs it anew."""
    a, b, _ = sites
    a.mesh.forget("evil", stage.now())
    hello(b.mesh, "a", stage.wall_ms, members=a.mesh.saved().members)
    saved_a, saved_b = encode(a.mesh.saved()), encode(b.mesh.saved())
    stage.pki = Pki()
    for name in "ab":
        stage.pki.site(stage.folder / name, name, made_s=stage.wall_ms / 1000)
    b = stage.site("b", saved=saved_b)
    assert b.mesh.forgotten == {"evil"}
    assert hello(b.mesh, "c", stage.wall_ms).members == ()  # nobody would take it with this signature
    a = stage.site("a", has_key=True, saved=saved_a)
    members = hello(a.mesh, "b", stage.wall_ms).members
    assert [one.name for one in members] == ["evil"]
    hello(b.mesh, "a", stage.wall_ms, members=members)
    assert hello(b.mesh, "c", stage.wall_ms).members == members
    assert reasons(b.mesh) == [("", FORGED_RECORD)]  # that of a, which was saved with a certificate of the old one


# -- which sites have a decision ---------------------------------------------------------------------------


def test_a_site_confirms_for_itself_alone(stage: Stage, sites: Sites) -> None:
    a, b, _ = sites
    c = stage.site("c")
    hello(a.mesh, "c", stage.wall_ms, entries=(c.mesh.own,))
    assert a.mesh.without_decision("evil") == []  # there is none
    a.mesh.forget("evil", stage.now())
    assert a.mesh.without_decision("evil") == ["b", "c"]
    hello(a.mesh, "b", stage.wall_ms)  # it does not have it yet
    assert a.mesh.without_decision("evil") == ["b", "c"]
    hello(b.mesh, "a", stage.wall_ms, members=hello(a.mesh, "b", stage.wall_ms).members)
    digest = hello(b.mesh, "a", stage.wall_ms).decisions
    hello(a.mesh, "evil", stage.wall_ms, decisions=digest)  # a forgotten site does not count
    assert a.mesh.without_decision("evil") == ["b", "c"]
    hello(a.mesh, "b", stage.wall_ms, decisions=digest)
    assert a.mesh.without_decision("evil") == ["c"]
    # It lost its store: what it had confirmed does not count any more.
    lost = Heartbeat("b", "2", 1, int(stage.wall_ms), stage.wall_ms)
    a.mesh.received_probe(lost, stage.now())
    assert a.mesh.without_decision("evil") == ["b", "c"]
    # A later decision has to be confirmed anew, and the earlier one stays confirmed.
    hello(a.mesh, "b", stage.wall_ms, decisions=digest)
    a.mesh.forget("c", stage.now())
    assert (a.mesh.without_decision("evil"), a.mesh.without_decision("c")) == ([], ["b"])


def test_an_operator_signs_with_the_folder_of_the_authority_and_any_site_takes_it(stage: Stage, sites: Sites) -> None:
    _, b, _ = sites
    b.mesh.take_decision(forget(stage, "a"), stage.now())  # the site that has the key is the stolen one
    assert b.mesh.forgotten == {"a"}
    with pytest.raises(ClientError, match="there is a later decision about 'a'"):
        b.mesh.take_decision(forget(stage, "a", at_ms=stage.wall_ms - 5, forgotten=False), stage.now())
    with pytest.raises(ClientError, match="not signed by an authority of this mesh"):
        b.mesh.take_decision(MembershipRecord("evil", int(stage.wall_ms), forgotten=True), stage.now())

"""Who a client or a site is, what it may do, and a record of what was done and refused.

Sites have certificates of the mesh's own authority (`certificates`, `keyring`, `tls`), which also name the key that
signs their documents (`signatures`). A new site joins by an invitation (`invitations`, `certificate_requests`). People
and programs have tokens (`tokens`); both become a `Principal` with a role and a reach. `audit` writes the append-only
log, `refusals` counts refusals and limits how often a sender may send requests.

    authority = make_authority(time.time())
    identity = authority.issue(CertificateSpec("site1", key.public_key(), signing_key), time.time(), 30 * 86_400)
    Authorities([authority.certificate]).verify(identity.der, time.time())    # raises UntrustedError

    (signature,) = Signer(signing_key).sign([content])
    Verifier().check(content, read(signature), public_key)                    # raises SignatureError

Nothing here knows a network, a peer or an HTTP request: the packages `peers` and `api` call it where requests arrive.
It imports only `config`, `scope.names` and the tools at the bottom. `cryptography` takes long to import, so agents with
`security: none` never load it: modules that need it are imported where they are used.
"""

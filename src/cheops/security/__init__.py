"""Who is who, and who may do what: identities, signatures, tokens, and a count of what was refused."""

"""Mail authentication as pure functions of message bytes, time and DNS answers.

DKIM (RFC 6376, RFC 8301, RFC 8463): `canonical` brings a message into the form that is hashed, `tags` reads tag lists,
`dkim_key` holds private keys, `dkim_record` public ones as DNS publishes them, `dkim_signature` reads a signature
field, `dkim_sign` makes signatures, `dkim_verify` judges them.

ARC (RFC 8617): `arc_chain` reads the sets of a message, `arc_verify` judges them, `arc_seal` adds one.

SPF (RFC 7208): `spf` checks a session, `spf_record` and `spf_macro` read what domains publish.

DMARC (RFC 7489, RFC 9989): `organisational` knows the public suffixes, `dmarc_record` reads records, `dmarc_policy`
finds the one that applies, `dmarc` judges alignment. `authres` reads and writes Authentication-Results (RFC 8601),
`authres_trust` says which are believed and which must go. `checks` does DKIM, ARC and DMARC of one message, `verdict`
draws the conclusion, `findings` writes it down in our name.

DNS is asked through the protocols in `resolver`; `zone` is a resolver over a mapping, `answers` one that was asked
beforehand.
"""

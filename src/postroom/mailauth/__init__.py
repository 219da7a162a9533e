"""Mail authentication as pure functions of message bytes, time and DNS answers.

DKIM (RFC 6376, RFC 8301, RFC 8463): `canonical` brings a message into the form that is hashed, `tags` reads tag lists,
`dkim_key` holds private keys, `dkim_record` public ones as DNS publishes them, `dkim_signature` reads a signature
field, `dkim_sign` makes signatures, `dkim_verify` judges them.

SPF (RFC 7208): `spf` checks a session, `spf_record` and `spf_macro` read what domains publish.

DNS is asked through the protocols in `resolver`; `zone` is a resolver over a mapping.
"""

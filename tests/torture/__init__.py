"""Kill tests: a real server under load, killed at random moments, checked after every restart.

`python -m tests.torture --rounds 5` starts Postroom on a data directory of its own, loads it through SMTP, IMAP and
REST, kills the server, its database or both, starts again and compares what is there with everything that was ever
acknowledged. The directory is kept from round to round, so damage of an early round is found by a later one.

Every third round is of mail that leaves (`outgoing`), to a relay that is killed, too.
"""

"""Dovecot's IMAP process, asked about a Maildir: what another server makes of the same messages.

It runs alone, signed in from the start and speaking on its standard input; nothing of the machine's configuration is
read.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

import pytest

PROGRAM = Path("/usr/lib/dovecot/imap")
_CONFIGURATION = """\
base_dir = {root}/run
state_dir = {root}/run
log_path = {root}/log
mail_location = maildir:{root}/mail
mail_uid = nobody
mail_gid = nogroup
first_valid_uid = 1
first_valid_gid = 1
"""

needs_dovecot = pytest.mark.skipif(
    not PROGRAM.exists() or os.geteuid() != 0, reason="Dovecot is not installed, or not root"
)


def ask_dovecot(mails: Sequence[bytes], commands: Sequence[bytes], *, first_date: int = 0) -> list[bytes]:
    """What each SORT or THREAD is answered with. Internal dates are `first_date` and the seconds after."""
    root = Path(tempfile.mkdtemp(prefix="dovecot-", dir="/var/tmp"))
    try:
        (root / "dovecot.conf").write_text(_CONFIGURATION.format(root=root))
        for name in ("cur", "new", "tmp"):
            (root / "mail" / name).mkdir(parents=True)
        for number, mail in enumerate(mails):
            path = root / "mail" / "cur" / f"{1_000_000_000 + number}.M{number}.x:2,"
            path.write_bytes(mail)
            os.utime(path, (first_date + number, first_date + number))
        for path in (root, *root.rglob("*")):
            shutil.chown(path, "nobody", "nogroup")
        said = b"".join(b"t%d %b\r\n" % (n, text) for n, text in enumerate((b"SELECT INBOX", *commands, b"LOGOUT")))
        done = subprocess.run(
            [PROGRAM, "-c", root / "dovecot.conf"],
            input=said,
            capture_output=True,
            timeout=60,
            env={"USER": "somebody", "HOME": str(root), "PATH": os.environ["PATH"]},
            check=True,
        )
    finally:
        shutil.rmtree(root, ignore_errors=True)
    lines = done.stdout.split(b"\r\n")
    assert sum(re.match(rb"t\d+ OK ", line) is not None for line in lines) == len(commands) + 2, lines
    # It begins a command before it ends another, but says what it found in their order.
    return [line for line in lines if line.startswith((b"* SORT", b"* THREAD"))]

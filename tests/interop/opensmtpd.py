"""A private OpenSMTPD: takes mail for its domain into one Maildir, relays for this machine, refuses two addresses.

Users and directories are compiled into it. It runs from where it was unpacked, in a mount namespace of its own where
they exist; the machine keeps its own.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from typing import Final

from tests.interop.place import SMTP_PORT, Daemon, Missing, mail_user, need_root, new_address, our_address, unpacked

_USERS: Final = {"opensmtpd": 64_000, "opensmtpq": 64_001}
_MOUNTS: Final = {
    "spool": "/var/spool",
    "run": "/run",
    "lib": "/var/lib",
    "passwd": "/etc/passwd",
    "group": "/etc/group",
}

_CONFIG: Final = """\
smtp max-message-size 30M
table busy {{ "busy@{domain}" }}
table gone {{ "gone@{domain}" }}
filter busy phase rcpt-to match rcpt-to <busy> reject "450 4.2.1 Try again later"
filter gone phase rcpt-to match rcpt-to <gone> reject "550 5.1.1 Nobody of that name"
filter both chain {{ busy, gone }}
listen on {address} port 25 hostname {host} filter both
table everybody {{ "@" = "mail" }}
action "in" maildir "{root}/mail" virtual <everybody>
action "ours" relay helo {host} host "smtp://{ours}"
match from any for domain "{domain}" action "in"
match from src 127.0.0.0/8 for domain "{our_domain}" action "ours"
"""


class OpenSmtpd(Daemon):
    """`busy@` and `gone@` of its domain are refused: for now, and for good. Raises Missing where it cannot run."""

    domain: Final = "opensmtpd.example"
    host: Final = "mx.opensmtpd.example"

    def __init__(self, ours: str) -> None:
        need_root("OpenSMTPD")
        binary, programs = unpacked("OpenSMTPD", "usr/sbin/smtpd", "usr/libexec")
        if subprocess.run(["unshare", "--mount", "true"], check=False, capture_output=True, timeout=30).returncode:
            raise Missing("OpenSMTPD wants a mount namespace of its own (`unshare --mount`), which is refused here")
        user = mail_user()
        self.address = new_address()
        super().__init__("opensmtpd")
        self.mail = self.root / "mail"
        for name in ("spool", "run", "lib/opensmtpd/empty", "mail"):
            (self.root / name).mkdir(mode=0o755, parents=True)
        os.chown(self.mail, user.pw_uid, user.pw_gid)
        # It wants directories that nobody else may write.
        (self.root / "spool").chmod(0o711)
        for name, line in (
            ("passwd", "{0}:x:{1}:{1}::/var/lib/opensmtpd/empty:/usr/sbin/nologin\n"),
            ("group", "{0}:x:{1}:\n"),
        ):
            shutil.copy(f"/etc/{name}", self.root / name)
            with (self.root / name).open("a") as file:
                file.writelines(line.format(user_name, number) for user_name, number in _USERS.items())
        config = self.root / "smtpd.conf"
        config.write_text(
            _CONFIG.format(
                root=self.root,
                domain=self.domain,
                host=self.host,
                address=self.address,
                ours=our_address(),
                our_domain=ours,
            )
        )
        config.chmod(0o600)
        mounts = {str(self.root / name): where for name, where in _MOUNTS.items()} | {str(programs): "/usr/libexec"}
        script = "".join(f"mount --bind '{source}' '{where}' && " for source, where in mounts.items())
        command = ["unshare", "--mount", "sh", "-c", f'{script} exec "$0" -dv -f "$1"', binary, config]
        self.run(command, self.address, SMTP_PORT)

    def log(self) -> str:
        return self.output()

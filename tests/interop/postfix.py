"""A private Postfix: takes mail for its domain into one Maildir, relays for this machine, and answers as it is told."""

from __future__ import annotations

import base64
import grp
import os
import pwd
import socketserver
import threading
from pathlib import Path
from typing import Final
from urllib.parse import quote, unquote

from tests.interop.exim import PASSWORD, USERNAME, Exim
from tests.interop.place import SMTP_PORT, Daemon, Missing, exim_address, mail_user, need_root, new_address, our_address
from tests.interop.tls import Authority

_MAIN_CF: Final = """\
compatibility_level = 3.6
queue_directory = {root}/queue
data_directory = {root}/lib
mail_owner = postfix
setgid_group = postdrop
maillog_file = /dev/stdout
myhostname = {host}
myorigin = {domain}
mydestination =
inet_interfaces = 127.0.0.1
inet_protocols = ipv4
mynetworks = 127.0.0.0/8
biff = no
alias_maps =
alias_database =
local_recipient_maps =
message_size_limit = 30000000
smtpd_peername_lookup = no
smtpd_error_sleep_time = 0
smtpd_soft_error_limit = 1000
smtpd_hard_error_limit = 1000
smtp_dns_support_level = disabled
smtp_host_lookup = native
smtpd_tls_security_level = may
smtpd_tls_cert_file = {certificate}
smtpd_tls_key_file = {key}
smtpd_tls_received_header = yes
smtp_tls_security_level = may
smtp_tls_loglevel = 1
smtpd_relay_restrictions = permit_mynetworks, permit_sasl_authenticated, reject_unauth_destination
smtpd_recipient_restrictions = check_recipient_access tcp:127.0.0.1:{answers}
virtual_mailbox_domains = {domain}
virtual_mailbox_base = {root}
virtual_mailbox_maps = static:mail/
virtual_mailbox_limit = 0
virtual_uid_maps = static:{uid}
virtual_gid_maps = static:{gid}
virtual_minimum_uid = 1
transport_maps = texthash:{root}/routes
"""
_MASTER_CF: Final = """\
{address}:25 inet n - n - - smtpd
{address}:587 inet n - n - - smtpd -o smtpd_tls_security_level=encrypt -o smtpd_sasl_auth_enable=yes
  -o smtpd_sasl_type=dovecot -o smtpd_sasl_path=inet:127.0.0.1:{sasl}
  -o smtpd_client_restrictions=permit_sasl_authenticated,reject
cleanup unix n - n - 0 cleanup
qmgr unix n - n 300 1 qmgr
tlsmgr unix - - n 1000? 1 tlsmgr
rewrite unix - - n - - trivial-rewrite
bounce unix - - n - 0 bounce
defer unix - - n - 0 bounce
trace unix - - n - 0 bounce
verify unix - - n - 1 verify
flush unix n - n 1000? 0 flush
proxymap unix - - n - - proxymap
proxywrite unix - - n - 1 proxymap
smtp unix - - n - - smtp
relay unix - - n - - smtp
showq unix n - n - - showq
error unix - - n - - error
retry unix - - n - - error
discard unix - - n - - discard
virtual unix - n n - - virtual
anvil unix - - n - 1 anvil
scache unix - - n - 1 scache
postlog unix-dgram n - n - 1 postlogd
"""


class Postfix(Daemon):
    """Mail for the domain `ours` goes to our address, that for Exim's to Exim. Raises Missing where it cannot run."""

    domain: Final = "postfix.example"
    host: Final = "mx.postfix.example"

    def __init__(self, authority: Authority, ours: str) -> None:
        need_root("Postfix")
        if not Path("/usr/sbin/postfix").exists():
            raise Missing("Postfix is not installed: run `make peers`, or `apt-get install postfix`")
        self.address = new_address()
        super().__init__("postfix")
        self.mail = self.root / "mail"
        self._sasl = _Service(_SaslHandler)
        self._answers = _Service(_AnswersHandler)
        user = mail_user()
        certificate, key = authority.issue(self.root, self.host, self.address)
        values = {
            "root": self.root,
            "domain": self.domain,
            "host": self.host,
            "address": self.address,
            "uid": user.pw_uid,
            "gid": user.pw_gid,
            "certificate": certificate,
            "key": key,
            "sasl": self._sasl.port,
            "answers": self._answers.port,
        }
        for name in ("config", "queue", "queue/pid", "lib", "mail"):
            (self.root / name).mkdir(mode=0o755)
        os.chown(self.root / "lib", pwd.getpwnam("postfix").pw_uid, grp.getgrnam("postfix").gr_gid)
        os.chown(self.mail, user.pw_uid, user.pw_gid)
        # Master writes its id there.
        self.pid_file.symlink_to(self.root / "queue/pid/master.pid")
        (self.root / "config/main.cf").write_text(_MAIN_CF.format(**values))
        (self.root / "config/master.cf").write_text(_MASTER_CF.format(**values))
        (self.root / "routes").write_text(f"{ours} smtp:[{our_address()}]\n{Exim.domain} smtp:[{exim_address()}]\n")
        self.run(["postfix", "-c", self.root / "config", "start-fg"], self.address, SMTP_PORT)

    def answer(self, answers: dict[str, str]) -> None:
        """What RCPT is answered for addresses, from now on: `450 4.2.1 …`; others are taken."""
        self._answers.answers = dict(answers)

    def log(self) -> str:
        return self.output()

    def stop(self) -> None:
        super().stop()
        self._sasl.stop()
        self._answers.stop()


class _Service(socketserver.ThreadingTCPServer):
    """Something that Postfix asks us, in threads."""

    daemon_threads = True
    allow_reuse_address = True

    def __init__(self, handler: type[socketserver.StreamRequestHandler]) -> None:
        super().__init__(("127.0.0.1", 0), handler)
        self.port: int = self.server_address[1]
        self.answers: dict[str, str] = {}
        threading.Thread(target=self.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()

    def stop(self) -> None:
        self.shutdown()
        self.server_close()


class _AnswersHandler(socketserver.StreamRequestHandler):
    """What to answer for an address: a table that is asked anew each time (tcp_table(5))."""

    def handle(self) -> None:
        assert isinstance(self.server, _Service)
        for line in self.rfile:
            found = self.server.answers.get(unquote(line.decode().removeprefix("get ").rstrip("\n")))
            self.wfile.write(f"200 {quote(found)}\n".encode() if found else b"500 none\n")


class _SaslHandler(socketserver.StreamRequestHandler):
    """Whether a password is right: Dovecot's authentication protocol, as far as PLAIN needs it."""

    def handle(self) -> None:
        self.wfile.write(b"VERSION\t1\t1\nMECH\tPLAIN\tplaintext\nSPID\t1\nCUID\t1\nCOOKIE\t0123456789abcdef\nDONE\n")
        for line in self.rfile:
            words = line.decode().rstrip("\n").split("\t")
            if words[0] != "AUTH":
                continue
            response = next(word.removeprefix("resp=") for word in words if word.startswith("resp="))
            _, username, password = base64.b64decode(response).decode().split("\0")
            good = (username, password) == (USERNAME, PASSWORD)
            self.wfile.write(f"{'OK' if good else 'FAIL'}\t{words[1]}\tuser={username}\n".encode())

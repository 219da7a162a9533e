"""A private Exim: takes mail for its domain into one Maildir, relays for this machine, and answers as it is told.

It runs from where it was unpacked. The user that its package would have made exists for it alone (nss_wrapper).
"""

from __future__ import annotations

import os
import re
from typing import Final

from tests.interop.place import SMTP_PORT, Daemon, exim_address, libraries, mail_user, our_address, unpacked
from tests.interop.tls import Authority

SUBMISSION_PORT: Final = 587
USERNAME: Final = "relay-user"
PASSWORD: Final = "relay password 17"

_CONFIG: Final = """\
primary_hostname = {host}
exim_path = {root}/exim
exim_user = Debian-exim
exim_group = Debian-exim
never_users =
deliver_drop_privilege
keep_environment =
spool_directory = {root}/spool
log_file_path = {root}/spool/%slog
pid_file_path = {root}/spool/exim.pid
log_selector = +pipelining +tls_cipher +received_recipients +pid +smtp_protocol_error +smtp_connection
local_interfaces = {address}
daemon_smtp_ports = 25 : 587
host_lookup =
rfc1413_query_timeout = 0s
message_size_limit = 30M
smtp_accept_max = 100
tls_advertise_hosts = *
tls_certificate = {certificate}
tls_privatekey = {key}
auth_advertise_hosts = ${{if and{{{{eq{{$received_port}}{{587}}}}{{def:tls_in_cipher}}}}{{*}}{{}}}}
acl_smtp_rcpt = rcpt
acl_smtp_predata = predata
acl_smtp_data = data

begin acl

rcpt:
  defer message = ${{extract{{$local_part@$domain}}{{${{readfile{{{root}/answers}}{{ }}}}}}}}
        condition = ${{if match{{${{extract{{$local_part@$domain}}{{${{readfile{{{root}/answers}}{{ }}}}}}}}}}{{^4}}}}
  deny message = ${{extract{{$local_part@$domain}}{{${{readfile{{{root}/answers}}{{ }}}}}}}}
       condition = ${{if match{{${{extract{{$local_part@$domain}}{{${{readfile{{{root}/answers}}{{ }}}}}}}}}}{{^5}}}}
  accept condition = ${{if eq{{$received_port}}{{25}}}}
  accept authenticated = *
  deny message = 530 5.7.0 Sign in first

predata:
  warn condition = ${{if match{{${{extract{{predata}}{{${{readfile{{{root}/answers}}{{ }}}}}}}}}}{{^hang}}}}
       logwrite = :main: hangs at predata
       delay = 1m
  accept

data:
  warn condition = ${{if match{{${{extract{{final}}{{${{readfile{{{root}/answers}}{{ }}}}}}}}}}{{^hang}}}}
       logwrite = :main: hangs at final
       delay = 1m
  defer message = ${{extract{{final}}{{${{readfile{{{root}/answers}}{{ }}}}}}}}
        condition = ${{if match{{${{extract{{final}}{{${{readfile{{{root}/answers}}{{ }}}}}}}}}}{{^4}}}}
  deny message = ${{extract{{final}}{{${{readfile{{{root}/answers}}{{ }}}}}}}}
       condition = ${{if match{{${{extract{{final}}{{${{readfile{{{root}/answers}}{{ }}}}}}}}}}{{^5}}}}
  accept

begin routers

ours:
  driver = accept
  domains = {domain}
  transport = maildir

others:
  driver = manualroute
  route_data = ${{lookup{{$domain}}lsearch{{{root}/routes}}}}
  self = send
  transport = smtp

begin transports

maildir:
  driver = appendfile
  directory = {root}/mail
  maildir_format
  envelope_to_add
  return_path_add
  mode = 0644

smtp:
  driver = smtp

begin retry

* * F,1h,1m

begin authenticators

plain:
  driver = plaintext
  public_name = PLAIN
  server_prompts = :
  server_condition = ${{if and{{{{eq{{$auth2}}{{{username}}}}}{{eq{{$auth3}}{{{password}}}}}}}}}
  server_set_id = $auth2
"""


class Exim(Daemon):
    """Mail for the domain `ours` goes to our address. Raises Missing where it cannot run."""

    domain: Final = "exim.example"
    host: Final = "mx.exim.example"

    def __init__(self, authority: Authority, ours: str) -> None:
        (binary,) = unpacked("Exim", "usr/sbin/exim4")
        found, user = libraries(), mail_user()
        self.address = exim_address()
        super().__init__("exim")
        self.mail = self.root / "mail"
        for name in ("spool", "mail"):
            (self.root / name).mkdir(mode=0o755)
            os.chown(self.root / name, user.pw_uid, user.pw_gid)
        certificate, key = authority.issue(self.root, self.host, self.address)
        values = {
            "root": self.root,
            "domain": self.domain,
            "host": self.host,
            "address": self.address,
            "certificate": certificate,
            "key": key,
            "username": USERNAME,
            "password": PASSWORD,
        }
        (self.root / "exim.conf").write_text(_CONFIG.format(**values))
        (self.root / "routes").write_text(f"{ours}: {our_address()}\n")
        self.answer({})
        account = f"{user.pw_uid}:{user.pw_gid}::{self.root}/spool:/usr/sbin/nologin\n"
        (self.root / "passwd").write_text(f"root:x:0:0::/root:/bin/sh\nDebian-exim:x:{account}")
        (self.root / "group").write_text(f"root:x:0:\nDebian-exim:x:{user.pw_gid}:\n")
        # It starts itself anew for some of its work, without the environment that it was given.
        program = self.root / "exim"
        program.write_text(
            "#!/bin/sh\n"
            f"export LD_PRELOAD='{found}/libnss_wrapper.so' LD_LIBRARY_PATH='{found}'\n"
            f"export NSS_WRAPPER_PASSWD='{self.root}/passwd' NSS_WRAPPER_GROUP='{self.root}/group'\n"
            f"exec '{binary}' \"$@\"\n"
        )
        program.chmod(0o755)
        # In the foreground, looking into its queue every second.
        command = [program, "-C", self.root / "exim.conf", "-bdf", "-q1s"]
        self.run(command, self.address, SMTP_PORT, SUBMISSION_PORT)

    def answer(self, answers: dict[str, str]) -> None:
        """What RCPT is answered for addresses, from now on: `450 4.2.1 …`; others are taken. `final` is the answer to
        the final dot. With `hang` for it, or for `predata`, that answer, or the one to DATA, does not come.
        """
        staged = self.root / "answers.new"
        staged.write_text("".join(f'{address}="{reply}"\n' for address, reply in answers.items()))
        staged.replace(self.root / "answers")

    def hanging(self, where: str) -> int | None:
        """The newest process that hangs at `predata` or `final`."""
        found = re.findall(rf"\[(\d+)\] (?:\S+ )?hangs at {where}", self.log())
        return int(found[-1]) if found else None

    def log(self) -> str:
        path = self.root / "spool/mainlog"
        return self.output() + (path.read_text("utf-8", "replace") if path.exists() else "")

"""`postroom import`: mail of other programs and servers, with folders, flags and dates (decisions C7, 0049)."""

from __future__ import annotations

import ipaddress
import os
import ssl
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Final

import typer

from postroom.app import Core
from postroom.cli.arguments import find_identity
from postroom.cli.failures import CliError, Exit, usage
from postroom.cli.frame import command
from postroom.cli.invocation import Invocation
from postroom.cli.output import Mode, cell
from postroom.cli.progress import Progress
from postroom.cli.reach import run
from postroom.cli.shapes import Document
from postroom.inbound.parsing import Parser
from postroom.mailbox.models import MailboxRef
from postroom.migration.batches import Batches, Mailbox
from postroom.migration.imap_source import ImapAccount, ImapSource, Tls
from postroom.migration.importing import Importer
from postroom.migration.maildir import MaildirSource
from postroom.migration.mbox import MboxSource
from postroom.migration.mbox_format import Dialect
from postroom.migration.models import (
    AnotherImport,
    FolderReport,
    ImportReport,
    Source,
    SourceError,
    SourceErrorKind,
    Trouble,
    Uids,
)

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    help="Bring mail from elsewhere into a mailbox: folders, flags and dates stay. May be stopped and run again.",
)

IntoOption = Annotated[str, typer.Option("--into", metavar="ADDRESS|ID", help="The identity whose mailbox it goes to.")]
UnderOption = Annotated[
    str | None,
    typer.Option(
        "--under", metavar="FOLDER", help="Put everything below this folder, rather than beside what is there."
    ),
]
AgainOption = Annotated[
    bool,
    typer.Option(
        "--again",
        help="Forget what earlier runs brought: what was deleted here since comes back. Nothing is added twice.",
    ),
]

_PORTS: Final = {Tls.IMPLICIT: 993, Tls.STARTTLS: 143, Tls.NONE: 143}
_MAX_PASSWORD: Final = 4096
_COLUMNS: Final = ("folder", "found", "imported", "earlier", "duplicates", "uids")
_EXITS: Final = {
    SourceErrorKind.PATH: Exit.USAGE,
    SourceErrorKind.ACCESS: Exit.ACCESS,
    SourceErrorKind.REMOTE: Exit.REMOTE,
}
_TROUBLES: Final = {
    Trouble.TOO_LARGE: "larger than a message may be",
    Trouble.UNREADABLE: "cannot be read",
    Trouble.EMPTY: "empty",
    Trouble.GONE: "deleted, or gone meanwhile",
    Trouble.REFUSED: "could not be stored",
}


@command(app)
def maildir(
    call: Invocation,
    path: Annotated[Path, typer.Argument(metavar="DIR", help="The directory that holds cur, new and tmp.")],
    into: IntoOption,
    under: UnderOption = None,
    again: AgainOption = False,
) -> None:
    """Bring a Maildir: Maildir++ as Dovecot and Courier keep it, or a directory for each level.

    UIDs stay where Dovecot's files tell them and a folder here is still empty: then mail programs need not fetch
    everything anew. Nothing in the Maildir is changed.
    """
    _run(call, into, lambda limit: MaildirSource(path, max_bytes=limit), under, again=again)


@command(app)
def mbox(
    call: Invocation,
    path: Annotated[Path, typer.Argument(metavar="FILE|DIR", help="An mbox file, or a directory of them.")],
    into: IntoOption,
    folder: Annotated[str, typer.Option("--folder", help="The folder that a single file becomes.")] = "INBOX",
    dialect: Annotated[
        Dialect,
        typer.Option(
            "--dialect", help="How lines that begin with From are told apart; the files of most programs are mboxrd."
        ),
    ] = Dialect.MBOXRD,
    under: UnderOption = None,
    again: AgainOption = False,
) -> None:
    """Bring mbox files: of one a folder, of a directory (Thunderbird's, for example) a folder for each file.

    Close the program that writes them before.
    """
    _run(
        call, into, lambda limit: MboxSource(path, max_bytes=limit, dialect=dialect, folder=folder), under, again=again
    )


@command(app)
def imap(
    call: Invocation,
    host: Annotated[str, typer.Argument(metavar="HOST", help="The IMAP server.")],
    user: Annotated[str, typer.Option("--user", help="The name to sign in with.")],
    into: IntoOption,
    tls: Annotated[
        Tls, typer.Option("--tls", help="How the connection is encrypted; none only to this machine.")
    ] = Tls.IMPLICIT,
    port: Annotated[
        int | None, typer.Option("--port", min=1, max=65535, help="The port; 993, or 143 for starttls and none.")
    ] = None,
    ca_file: Annotated[
        Path | None, typer.Option("--ca-file", metavar="FILE", help="Certificates to trust, in place of the system's.")
    ] = None,
    password_env: Annotated[
        str | None, typer.Option("--password-env", metavar="NAME", help="The variable that holds the password.")
    ] = None,
    password_file: Annotated[
        Path | None,
        typer.Option("--password-file", metavar="FILE|-", help="The file whose first line it is; - is standard input."),
    ] = None,
    under: UnderOption = None,
    again: AgainOption = False,
) -> None:
    """Bring an account of another IMAP server. Asks for its password, unless told where that is.

    Nothing is changed there. Messages that were brought before are not fetched again.
    """
    if tls is Tls.NONE and not _is_here(host):
        raise usage("--tls none: the password would travel readable", "Use starttls or implicit.")
    account = ImapAccount(
        host=host,
        port=port or _PORTS[tls],
        tls=tls,
        user=user,
        password=_password(call, password_env, password_file),
        context=_trusting(ca_file),
    )
    _run(call, into, lambda limit: ImapSource(account, max_bytes=limit), under, again=again)


# -- what was asked ----------------------------------------------------------------------------------------------------


def _is_here(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host.lower() == "localhost"


def _trusting(ca_file: Path | None) -> ssl.SSLContext | None:
    if ca_file is None:
        return None
    try:
        return ssl.create_default_context(cafile=str(ca_file))
    except (OSError, ValueError):  # an ssl.SSLError is an OSError
        raise usage("--ca-file: there are no certificates in this file") from None


def _password(call: Invocation, variable: str | None, file: Path | None) -> str:
    """Never from the command line, which others on the machine can read."""
    if variable is not None and file is not None:
        raise usage("--password-env and --password-file exclude each other")
    if variable is not None:
        value = os.environ.get(variable)
        if not value:
            raise usage("--password-env: this variable is not set")
        return value
    if file is not None:
        return _first_line(file)
    if not call.output.interactive:
        raise usage("there is nobody to ask for the password", "Say where it is: --password-env or --password-file.")
    return str(typer.prompt("Password", hide_input=True, err=True))


def _first_line(file: Path) -> str:
    try:
        if str(file) == "-":
            line = sys.stdin.buffer.readline(_MAX_PASSWORD)
        else:
            with open(file, "rb") as opened:
                line = opened.readline(_MAX_PASSWORD)
        return line.decode().rstrip("\r\n")
    except OSError as error:
        raise usage(f"--password-file: {error.strerror or 'it cannot be read'}") from None
    except UnicodeDecodeError:
        raise usage("--password-file: the password is not UTF-8 text") from None


# -- doing it ----------------------------------------------------------------------------------------------------------


def _run(call: Invocation, into: str, source_of: Callable[[int], Source], under: str | None, *, again: bool) -> None:
    """`source_of` makes the source for the largest message that is taken, in octets."""
    progress = Progress(call.output)

    async def work(core: Core) -> ImportReport:
        identity = await find_identity(core, into)
        ref = MailboxRef(identity.tenant_id, identity.id)
        limit = max(core.settings.limits.max_message_size, core.settings.imap.max_append_size)
        source = source_of(limit)
        parser = Parser()
        try:
            batches = Batches(
                *(core.database, core.blobs, parser, core.clock, core.ids),
                Mailbox(ref, identity.tenant_public_id, identity.public_id),
                lambda changed, modseq: core.live.changed(changed.mailbox_id, modseq),
            )
            importer = Importer(
                core.database,
                core.mailboxes,
                batches,
                core.clock,
                ref,
                lambda figures, total: progress.tell(figures.source, figures.found, total),
            )
            return await importer.run(source, under=under, forget=again)
        finally:
            source.close()
            parser.close()

    try:
        report = run(call, work)
    except SourceError as error:
        raise CliError("cli_source", error.message, exit=_EXITS[error.kind], fix=error.fix) from error
    except AnotherImport as error:
        message = "another import is bringing the same messages"
        raise CliError("cli_precondition", message, exit=Exit.CONFLICT, fix="Wait until it ends.") from error
    progress.end()
    _tell(call, report)
    if not report.is_whole:
        raise typer.Exit(Exit.INVALID)


def _document(report: ImportReport) -> Document:
    return {
        "imported": sum(one.imported for one in report.folders),
        "earlier": sum(one.earlier for one in report.folders),
        "duplicates": sum(one.duplicates for one in report.folders),
        "left_behind": {trouble.value: count for trouble, count in report.troubles.items()},
        "left_out": report.left_out,
        "mailbox_full": report.full,
        "folders": [_folder(one) for one in report.folders],
        "problems": [
            {"folder": folder, "message": name, "reason": trouble.value} for folder, name, trouble in report.problems
        ],
    }


def _folder(one: FolderReport) -> Document:
    return {
        "source": one.source,
        "folder": one.folder,
        "found": one.found,
        "imported": one.imported,
        "earlier": one.earlier,
        "duplicates": one.duplicates,
        "uids": one.uids.value,
        "messages_without_keywords": one.dropped_keywords,
    }


def _tell(call: Invocation, report: ImportReport) -> None:
    document = _document(report)
    if call.output.mode is not Mode.HUMAN:
        call.output.result(document, essential="imported")
        return
    out = call.output
    out.table(_COLUMNS, [[cell(_folder(one)[name]) for name in _COLUMNS] for one in report.folders])
    for one in report.folders:
        if one.renamed:
            out.line(f"{one.source} is {one.folder} here.")
        if one.dropped_keywords:
            out.line(f"{one.folder}: {one.dropped_keywords} lost keywords that cannot be kept.")
    for name in report.left_out:
        out.line(f"{name} was left out: it shows mail of other folders.")
    if any(one.uids is Uids.NEW for one in report.folders):
        out.line("Where UIDs are new, mail programs fetch the folder once more.")
    for folder, name, trouble in report.problems:
        out.line(f"left behind in {folder}: {name}: {_TROUBLES[trouble]}")
    unlisted = sum(report.troubles.values()) - len(report.problems)
    if unlisted:
        out.line(f"{unlisted} more were left behind.")
    out.line(
        f"{document['imported']} imported, {document['earlier']} by earlier runs, {document['duplicates']} were there."
    )
    if report.full:
        out.line("The mailbox is full. Give it more room, then run the same command again: it goes on from here.")

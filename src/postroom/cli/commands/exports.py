"""`postroom export`: a whole mailbox as files that other programs read (decisions B5, C7, 0049)."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Final

import typer

from postroom.app import Core
from postroom.cli.arguments import find_identity
from postroom.cli.failures import Exit, usage
from postroom.cli.frame import command
from postroom.cli.invocation import Invocation
from postroom.cli.output import Mode, cell
from postroom.cli.progress import Progress
from postroom.cli.reach import run
from postroom.cli.shapes import Document
from postroom.mailbox.models import MailboxRef
from postroom.migration.export_models import ExportRefused, ExportReport, FolderExported, Writer
from postroom.migration.exporting import Exporter
from postroom.migration.maildir_export import MaildirExport
from postroom.migration.mbox_export import MboxExport

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    help="Write a mailbox into files that other programs read. May be stopped and run again.",
)

TargetArgument = Annotated[
    Path, typer.Argument(metavar="DIR", help="A new directory, or that of an export which was interrupted.")
]
FromOption = Annotated[str, typer.Option("--from", metavar="ADDRESS|ID", help="The identity whose mailbox it is.")]

_COLUMNS: Final = ("folder", "place", "exported", "earlier", "missing")


@command(app)
def maildir(call: Invocation, target: TargetArgument, mailbox: FromOption) -> None:
    """Write a Maildir++ with flags, dates, keywords, subscriptions and UIDs, as Dovecot keeps them."""
    _run(call, mailbox, lambda identity_id: MaildirExport(target, identity_id))


@command(app)
def mbox(call: Invocation, target: TargetArgument, mailbox: FromOption) -> None:
    """Write a file in mboxrd form for each folder, with flags in Status, X-Status and X-Keywords."""
    _run(call, mailbox, lambda identity_id: MboxExport(target, identity_id))


def _run(call: Invocation, mailbox: str, writer_of: Callable[[str], Writer]) -> None:
    progress = Progress(call.output)

    async def work(core: Core) -> ExportReport:
        identity = await find_identity(core, mailbox)
        exporter = Exporter(
            core.mailboxes,
            core.blobs,
            MailboxRef(identity.tenant_id, identity.id),
            lambda figures, total: progress.tell(figures.folder, figures.exported + figures.earlier, total),
        )
        return await exporter.run(writer_of(identity.public_id))

    try:
        report = run(call, work)
    except ExportRefused as error:
        raise usage(error.message, error.fix) from error
    progress.end()
    _tell(call, report)
    if not report.is_whole:
        raise typer.Exit(Exit.INFRASTRUCTURE)


def _folder(one: FolderExported) -> Document:
    return {
        "folder": one.folder,
        "place": one.place,
        "exported": one.exported,
        "earlier": one.earlier,
        "missing": one.missing,
        "messages_without_keywords": one.lost_keywords,
    }


def _tell(call: Invocation, report: ExportReport) -> None:
    document = {
        "exported": sum(one.exported for one in report.folders),
        "earlier": sum(one.earlier for one in report.folders),
        "missing": sum(one.missing for one in report.folders),
        "folders": [_folder(one) for one in report.folders],
    }
    if call.output.mode is not Mode.HUMAN:
        call.output.result(document, essential="exported")
        return
    out = call.output
    out.table(_COLUMNS, [[cell(_folder(one)[name]) for name in _COLUMNS] for one in report.folders])
    for one in report.folders:
        if one.lost_keywords:
            out.line(f"{one.folder}: {one.lost_keywords} have keywords beyond the 26 that a Maildir has letters for.")
    out.line(f"{document['exported']} exported, {document['earlier']} by an earlier run.")
    if document["missing"]:
        out.line(f"Of {document['missing']} the bytes are missing in the store: see postroom doctor.")

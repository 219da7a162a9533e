"""`postroom secrets`: the keys that everything sealed is sealed under (security-privacy A6). None is ever shown."""

from __future__ import annotations

from typing import Annotated

import typer

from postroom.app import Core
from postroom.base.sealing import kid_of
from postroom.base.secrets import FILE_NAME, SLOTS, master_slots
from postroom.cli import shapes
from postroom.cli.frame import Yes, command, confirm
from postroom.cli.invocation import Invocation
from postroom.cli.master_rotation import PATIENCE, Plan, Rotation, Stage
from postroom.cli.progress import Progress
from postroom.cli.reach import run
from postroom.servers.objects import moment

app = typer.Typer(no_args_is_help=True, add_completion=False, help="The master key: how it stands, and a new one.")


@command(app)
def status(call: Invocation) -> None:
    """Show the slots of the master key, who holds what, what is sealed under which key, and what does not open."""
    call.output.result(run(call, lambda core: _status(call, core)), essential="remaining")


@command(app)
def rotate_master(
    call: Invocation,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with a rotation that was interrupted.")] = False,
    discard_previous: Annotated[
        bool, typer.Option("--discard-previous", help="Overwrite a key that backups of the last 30 days may need.")
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would be done.")] = False,
    patience: Annotated[
        float, typer.Option("--patience", metavar="SECONDS", min=0, help="How long to wait for the server processes.")
    ] = PATIENCE,
    yes: Yes = False,
) -> None:
    """Seal everything that is stored sealed under a new master key. Servers go on; interrupted, it can be resumed."""
    progress = Progress(call.output)

    def rotation(core: Core) -> Rotation:
        return Rotation(
            core,
            call.environ,
            call.output.line,
            lambda done, total: progress.tell("sealed anew", done, total),
            patience=patience,
        )

    async def ahead(core: Core) -> Plan:
        return await rotation(core).plan(resume=resume, discard_previous=discard_previous)

    async def work(core: Core) -> shapes.Document:
        # What was said yes to; while it was asked, somebody else may have begun.
        try:
            await rotation(core).run(plan, resume=resume, discard_previous=discard_previous)
        finally:
            progress.end()
        return await _status(call, core)

    plan = run(call, ahead)
    if dry_run:
        call.output.result(_plan(plan), essential="step")
        return
    confirm(call, yes, _question(plan))
    done = run(call, work)
    spare = next((one for one in done["slots"] if one["slot"] != done["active_slot"]), None)
    call.output.result(done, essential="remaining", human=_after(done, spare))


def _question(plan: Plan) -> str:
    if plan.stage is Stage.RESEAL:
        return f"Seal {plan.remaining} values anew, under the master key {plan.kid}?"
    new = "a new master key" if plan.new is None else f"the master key {plan.new}"
    return f"Put {new} into slot {plan.slot} in the place of {plan.kid}, and seal everything anew?"


def _plan(plan: Plan) -> shapes.Document:
    return {
        "step": plan.stage.value,
        "slot": plan.slot,
        "kid": plan.kid,
        "new_kid": plan.new,
        "remaining": plan.remaining,
    }


def _after(done: shapes.Document, spare: shapes.Document | None) -> str:
    said = "Everything is sealed under the new master key, and nothing is left under another one."
    if spare is None or not spare["present"]:
        return said
    name = "master_key" if spare["slot"] == "a" else "master_key_b"
    return (
        f"{said} Keep the one before ({spare['kid']}) for 30 days, for backups; then take {name} out of {FILE_NAME}, "
        "or out of the environment, on every machine. Back up the secrets now."
    )


async def _status(call: Invocation, core: Core) -> shapes.Document:
    slots = master_slots(core.settings.server.data_dir, call.environ)
    key_of = slots.keys[slots.active]
    active = None if key_of is None else kid_of(key_of)
    newest = await core.master_keys.newest()
    columns = await core.master_keys.standing()
    total, progress = sum(sum(kinds.values()) for kinds in columns.values()), Progress(call.output)
    try:
        broken = await core.master_keys.broken(lambda done: progress.tell("opened", done, max(done, total)))
    finally:
        progress.end()
    return {
        "active_slot": slots.active,
        "slots": [
            {
                "slot": slot,
                "present": slots.keys[slot] is not None,
                "kid": None if (key := slots.keys[slot]) is None else kid_of(key),
                "source": slots.sources[slot].value,
            }
            for slot in SLOTS
        ],
        "remaining": await core.master_keys.remaining(active),
        "activated_at": None if newest is None else moment(newest.activated_at),
        "resealed_at": None if newest is None or newest.resealed_at is None else moment(newest.resealed_at),
        "sealed": [
            {"column": column, "kid": kid, "values": count}
            for column, kinds in columns.items()
            for kid, count in sorted(kinds.items(), key=lambda one: one[0] or "")
        ],
        "broken": [{"column": column, "values": count} for column, count in sorted(broken.items())],
        "processes": [
            {
                "node": one.node,
                "active": one.active,
                "kids": list(one.kids),
                "seen_at": moment(one.seen_at),
            }
            for one in await core.master_keys.holders()
        ],
    }

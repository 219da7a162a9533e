"""What commands have in common: the options that each takes, and lists that are told page by page."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from typing import Annotated, Any, Final, Protocol, TypeVar

import typer

from postroom.app import Core
from postroom.base import interruption
from postroom.cli.arguments import DEFAULT_LIMIT, MAX_LIMIT, Fetch, collect
from postroom.cli.failures import FollowEnded, usage
from postroom.cli.invocation import Config, DataDir, Invocation, Json, Quiet, invocation
from postroom.cli.reach import run
from postroom.cli.shapes import Document

F = TypeVar("F", bound=Callable[..., None])

Yes = Annotated[bool, typer.Option("--yes", help="Do it without asking.")]

_Limit = Annotated[
    int | None,
    typer.Option("--limit", min=1, max=MAX_LIMIT, help=f"How many at most; {DEFAULT_LIMIT} when not given."),
]
_All = Annotated[bool, typer.Option("--all", help=f"All there are, up to --limit or {MAX_LIMIT:,}.")]

_COMMON: Final = (("json", Json, False), ("quiet", Quiet, False), ("config", Config, None), ("data_dir", DataDir, None))


class Listed(Protocol):
    """Something that lists know the place of."""

    @property
    def created_at(self) -> datetime: ...
    @property
    def public_id(self) -> str: ...


L = TypeVar("L", bound=Listed)


def command(app: typer.Typer, name: str | None = None, *, hidden: bool = False) -> Callable[[F], F]:
    """Make a command of a function whose first parameter is its `Invocation`: in its place come the options that all
    commands take, after those of its own. One that has a `limit` is a list, and takes `--all` beside it (A3). One
    that is `hidden` is another name, which help does not list.
    """

    def made(function: F) -> F:
        signature = inspect.signature(function, eval_str=True)
        own = list(signature.parameters.values())[1:]
        kind = inspect.Parameter.KEYWORD_ONLY
        is_list = "limit" in signature.parameters
        if is_list:
            at = [one.name for one in own].index("limit")
            whole = inspect.Parameter("whole", kind, default=False, annotation=_All)
            own[at : at + 1] = [own[at].replace(default=None, annotation=_Limit), whole]
        common = [inspect.Parameter(key, kind, default=value, annotation=what) for key, what, value in _COMMON]

        def called(*, json: bool, quiet: bool, config: Any, data_dir: Any, **given: Any) -> None:
            if is_list:
                usual = MAX_LIMIT if given.pop("whole") else DEFAULT_LIMIT
                given["limit"] = given["limit"] or usual
            function(invocation(json, quiet, config, data_dir), **given)

        parameters = [*(one.replace(kind=kind) for one in own), *common]
        called.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined] # as inspect has it
        called.__annotations__ = {one.name: one.annotation for one in parameters}
        called.__doc__ = function.__doc__
        app.command(name or function.__name__.replace("_", "-"), hidden=hidden)(called)
        return function

    return made


def tell_list(
    call: Invocation,
    pages: Callable[[Core], Awaitable[Fetch[L]]],
    shape: Callable[[L], Document],
    limit: int,
    cursor: str | None,
    *,
    columns: Sequence[str],
    empty: str,
) -> None:
    """Tell up to *limit* things, newest first, from where *cursor* is. `pages` gives what fetches them."""

    async def work(core: Core) -> tuple[list[Document], str | None]:
        found, following = await collect(await pages(core), lambda one: (one.created_at, one.public_id), limit, cursor)
        return [shape(one) for one in found], following

    rows, following = run(call, work)
    call.output.listing(rows, columns, next_cursor=following, empty=empty)


def confirm(call: Invocation, yes: bool, question: str) -> None:
    """Ask, unless it was said already. Raises a usage error where nobody can be asked, and Abort at a no."""
    if yes:
        return
    if not call.output.interactive:
        raise usage("this wants to be confirmed", "Add --yes.")
    typer.confirm(question, abort=True, err=True)


@contextmanager
def following() -> Iterator[None]:
    """Around what goes on until it is interrupted, and after what it shows; or, as a decorator, all of such a command.
    Raises FollowEnded, which nothing is printed of, whatever the interruption has become on its way.
    """
    try:
        yield
    except BaseException as error:
        is_ended = isinstance(error, KeyboardInterrupt | asyncio.CancelledError) or interruption.is_behind(error)
        if not is_ended:
            raise
        raise FollowEnded from error

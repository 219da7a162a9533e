"""One run of a command: its output, its settings, and where the deployment's files are (cli-config-ops A2; D13)."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Final

import typer

from postroom.base.settings import Settings, default_data_dir, find_config, load
from postroom.cli.failures import usage
from postroom.cli.output import Mode, Output

Json = Annotated[bool, typer.Option("--json", help="Print one JSON document.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Print the essential value alone.")]
Config = Annotated[Path | None, typer.Option("--config", metavar="FILE", help="The postroom.toml to read.")]
DataDir = Annotated[Path | None, typer.Option("--data-dir", metavar="DIR", help="Where the deployment's data is.")]

CONFIG_NAME: Final = "postroom.toml"
INTERNAL_PREFIX: Final = "POSTROOM_CHILD_"
"""Variables by which the program talks to its own child processes; not settings."""


@dataclass(frozen=True, slots=True)
class Invocation:
    """What the common options said."""

    output: Output
    config: Path | None = None
    data_dir: Path | None = None
    environ: Mapping[str, str] = field(default_factory=lambda: settings_environment(os.environ))

    @property
    def config_path(self) -> Path | None:
        """The file to read: the one named, else that of the data directory named, else as `find_config`."""
        if self.config is not None:
            return self.config
        if self.data_dir is not None and (self.data_dir / CONFIG_NAME).is_file():
            return self.data_dir / CONFIG_NAME
        return find_config(self.environ, Path.cwd())

    def settings(self, overrides: Mapping[str, object] | None = None) -> Settings:
        """The settings with *overrides* (dotted keys) of the command line. Raises SettingsError."""
        given = None if self.data_dir is None else self.data_dir.absolute()
        return load(
            {"server.data_dir": given, **(overrides or {})},
            self.environ,
            self.config_path,
            data_dir=default_data_dir(self.environ, Path.cwd()),
            host_name=socket.gethostname(),
        )


def invocation(json: bool, quiet: bool, config: Path | None = None, data_dir: Path | None = None) -> Invocation:
    """The invocation of the common options. Raises a usage error for options that exclude each other."""
    if json and quiet:
        raise usage("--json and --quiet exclude each other")
    mode = Mode.JSON if json else Mode.QUIET if quiet else Mode.HUMAN
    return Invocation(Output(mode), config, data_dir)


def settings_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """The environment without what is not meant as a setting."""
    return {name: value for name, value in environ.items() if not name.startswith(INTERNAL_PREFIX)}

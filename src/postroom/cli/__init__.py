"""The `postroom` command (cli-config-ops A2, A3, A5; mail-server H4): noun then verb, on the machine of the server.

Commands work on a deployment's settings and database and need no API key. Each prints a table or indented JSON for
people, one document with ``--json``, or the essential value alone with ``--quiet``.
"""

from postroom.cli.program import main

__all__ = ["main"]

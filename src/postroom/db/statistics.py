"""The planner's statistics while tables grow fast.

Plans stay in each session's statement cache until their tables are analysed. Autovacuum looks once a minute; a table
that was empty when its plans were made and has thousands of rows a few seconds later is served with the wrong index
until then.
"""

from __future__ import annotations

from typing import Final

from .pool import Connection

_GROWN: Final = """
SELECT quote_ident(relname) FROM pg_stat_user_tables
WHERE schemaname = current_schema() AND n_mod_since_analyze > 200 + 2 * (
  SELECT greatest(c.reltuples, 0) FROM pg_class c WHERE c.oid = relid
)
"""


async def analyze_grown(connection: Connection) -> int:
    """Analyse the tables that have grown threefold since they were last analysed; how many."""
    names = [row[0] for row in await connection.fetch(_GROWN)]
    for name in names:
        await connection.execute("ANALYZE " + name)
    return len(names)

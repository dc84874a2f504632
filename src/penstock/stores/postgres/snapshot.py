"""The schema as text, for people to read and tests to compare; `make schema` writes it to schema.sql.

From the catalogues and not from pg_dump, whose output changes with its version. Left out is what differs from
place to place: owners, grants, and the partitions of time, which come and go.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TypeAlias
from urllib.parse import urlsplit
from uuid import uuid4

import asyncpg

from penstock.stores.postgres.embedded import start_async
from penstock.stores.postgres.migrate import Connection, migrate

Lines: TypeAlias = defaultdict[str, list[str]]

FILE = Path(__file__).with_name("schema.sql")
HEAD = "-- The schema after all migrations, as the database tells it. Written by `make schema`; not run by anything.\n"

TYPES = """
SELECT t.typname AS name,
       CASE t.typtype
           WHEN 'e' THEN format('CREATE TYPE penstock.%I AS ENUM (%s);', t.typname,
               (SELECT string_agg(quote_literal(e.enumlabel), ', ' ORDER BY e.enumsortorder)
                FROM pg_enum e WHERE e.enumtypid = t.oid))
           WHEN 'd' THEN format('CREATE DOMAIN penstock.%I AS %s%s%s%s;', t.typname,
               format_type(t.typbasetype, t.typtypmod),
               ' DEFAULT ' || t.typdefault,
               CASE WHEN t.typnotnull THEN ' NOT NULL' END,
               (SELECT string_agg(format(' CONSTRAINT %I %s', c.conname, pg_get_constraintdef(c.oid)), ''
                                  ORDER BY c.conname COLLATE "C")
                FROM pg_constraint c WHERE c.contypid = t.oid AND c.contype = 'c'))
           ELSE format('CREATE TYPE penstock.%I AS (%s);', t.typname,
               (SELECT string_agg(format('%I %s', a.attname, format_type(a.atttypid, a.atttypmod)), ', '
                                  ORDER BY a.attnum)
                FROM pg_attribute a WHERE a.attrelid = t.typrelid AND NOT a.attisdropped))
       END AS definition
FROM pg_type t
LEFT JOIN pg_class c ON c.oid = t.typrelid
WHERE t.typnamespace = 'penstock'::regnamespace
  AND (t.typtype IN ('e', 'd') OR (t.typtype = 'c' AND c.relkind = 'c'))
ORDER BY t.typname COLLATE "C"
"""

# An identity column's sequence belongs to the column, and is told there.
SEQUENCES = """
SELECT c.relname AS name,
       concat_ws(' ', format('CREATE SEQUENCE penstock.%I', c.relname),
           'AS ' || nullif(format_type(s.seqtypid, NULL), 'bigint'),
           'START ' || nullif(s.seqstart, 1),
           'INCREMENT ' || nullif(s.seqincrement, 1),
           'MINVALUE ' || nullif(s.seqmin, 1),
           'MAXVALUE ' || nullif(s.seqmax, 9223372036854775807),
           'CACHE ' || nullif(s.seqcache, 1),
           CASE WHEN s.seqcycle THEN 'CYCLE' END) || ';' AS definition
FROM pg_sequence s
JOIN pg_class c ON c.oid = s.seqrelid
WHERE c.relnamespace = 'penstock'::regnamespace
  AND NOT EXISTS (SELECT FROM pg_depend d
                  WHERE d.classid = 'pg_class'::regclass AND d.objid = c.oid AND d.deptype = 'i')
ORDER BY c.relname COLLATE "C"
"""

TABLES = """
SELECT c.relname AS name,
       c.relpersistence = 'u' AS unlogged,
       parent.relname AS parent,
       pg_get_expr(c.relpartbound, c.oid) AS bound,
       pg_get_partkeydef(c.oid) AS partitioned_by,
       ARRAY(SELECT unnest(c.reloptions) ORDER BY 1)
           || ARRAY(SELECT 'toast.' || unnest(toast.reloptions) ORDER BY 1) AS options
FROM pg_class c
LEFT JOIN pg_class toast ON toast.oid = c.reltoastrelid
LEFT JOIN pg_inherits i ON i.inhrelid = c.oid
LEFT JOIN pg_class parent ON parent.oid = i.inhparent
LEFT JOIN pg_partitioned_table p ON p.partrelid = i.inhparent
WHERE c.relnamespace = 'penstock'::regnamespace
  AND c.relkind IN ('r', 'p')
  AND NOT (c.relispartition AND p.partstrat = 'r' AND pg_get_expr(c.relpartbound, c.oid) <> 'DEFAULT')
ORDER BY c.relname COLLATE "C"
"""

COLUMNS = """
SELECT c.relname AS table,
       concat_ws(' ', quote_ident(a.attname), format_type(a.atttypid, a.atttypmod),
           CASE WHEN a.attstorage <> t.typstorage THEN
               'STORAGE ' || CASE a.attstorage
                   WHEN 'p' THEN 'PLAIN' WHEN 'e' THEN 'EXTERNAL' WHEN 'm' THEN 'MAIN' ELSE 'EXTENDED' END
           END,
           CASE a.attcompression WHEN 'l' THEN 'COMPRESSION lz4' WHEN 'p' THEN 'COMPRESSION pglz' END,
           CASE WHEN a.attcollation <> t.typcollation THEN 'COLLATE ' || a.attcollation::regcollation END,
           CASE WHEN a.attnotnull THEN 'NOT NULL' END,
           CASE a.attgenerated
               WHEN 's' THEN format('GENERATED ALWAYS AS (%s) STORED', pg_get_expr(d.adbin, d.adrelid))
               WHEN 'v' THEN format('GENERATED ALWAYS AS (%s) VIRTUAL', pg_get_expr(d.adbin, d.adrelid))
               ELSE 'DEFAULT ' || pg_get_expr(d.adbin, d.adrelid)
           END,
           CASE a.attidentity
               WHEN 'a' THEN 'GENERATED ALWAYS AS IDENTITY'
               WHEN 'd' THEN 'GENERATED BY DEFAULT AS IDENTITY'
           END) AS definition
FROM pg_class c
JOIN pg_attribute a ON a.attrelid = c.oid
JOIN pg_type t ON t.oid = a.atttypid
LEFT JOIN pg_attrdef d ON d.adrelid = a.attrelid AND d.adnum = a.attnum
WHERE c.relnamespace = 'penstock'::regnamespace AND c.relkind IN ('r', 'p')
  AND a.attnum > 0 AND NOT a.attisdropped
ORDER BY c.relname COLLATE "C", a.attnum
"""

# Without NOT NULL, which PostgreSQL 18 also keeps as a constraint: it is told with its column.
CONSTRAINTS = """
SELECT c.relname AS table,
       concat_ws(' ', 'CONSTRAINT', quote_ident(con.conname), pg_get_constraintdef(con.oid),
           'WITH (' || array_to_string(index.reloptions, ', ') || ')') AS definition
FROM pg_constraint con
JOIN pg_class c ON c.oid = con.conrelid
LEFT JOIN pg_class index ON index.oid = con.conindid AND con.contype IN ('p', 'u', 'x')
WHERE c.relnamespace = 'penstock'::regnamespace
  AND con.contype IN ('p', 'u', 'x', 'c', 'f') AND con.conparentid = 0 AND con.conislocal
ORDER BY c.relname COLLATE "C", array_position('{p,u,x,c,f}'::"char"[], con.contype), con.conname COLLATE "C"
"""

INDEXES = """
SELECT c.relname AS table, pg_get_indexdef(i.indexrelid) || ';' AS definition
FROM pg_index i
JOIN pg_class c ON c.oid = i.indrelid
JOIN pg_class index ON index.oid = i.indexrelid
WHERE c.relnamespace = 'penstock'::regnamespace AND c.relkind IN ('r', 'p', 'm')
  AND NOT EXISTS (SELECT FROM pg_constraint con
                  WHERE con.conindid = i.indexrelid AND con.contype IN ('p', 'u', 'x'))
  AND NOT EXISTS (SELECT FROM pg_inherits h WHERE h.inhrelid = i.indexrelid)
ORDER BY c.relname COLLATE "C", index.relname COLLATE "C"
"""

TRIGGERS = """
SELECT c.relname AS table, pg_get_triggerdef(t.oid) || ';' AS definition
FROM pg_trigger t
JOIN pg_class c ON c.oid = t.tgrelid
WHERE c.relnamespace = 'penstock'::regnamespace AND NOT t.tgisinternal AND t.tgparentid = 0
ORDER BY c.relname COLLATE "C", t.tgname COLLATE "C"
"""

VIEWS = """
SELECT c.relname AS name,
       format(E'CREATE %s penstock.%I AS\\n%s',
           CASE c.relkind WHEN 'm' THEN 'MATERIALIZED VIEW' ELSE 'VIEW' END,
           c.relname, pg_get_viewdef(c.oid, true)) AS definition
FROM pg_class c
WHERE c.relnamespace = 'penstock'::regnamespace AND c.relkind IN ('v', 'm')
ORDER BY c.relname COLLATE "C"
"""

FUNCTIONS = """
SELECT p.proname AS name, rtrim(pg_get_functiondef(p.oid), E'\\n') || ';' AS definition
FROM pg_proc p
WHERE p.pronamespace = 'penstock'::regnamespace AND p.prokind <> 'a'
ORDER BY p.proname COLLATE "C", pg_get_function_identity_arguments(p.oid) COLLATE "C"
"""


async def snapshot(connection: Connection) -> str:
    """The schema `penstock` of a database in SQL's words, always in the same order."""
    async with connection.transaction(isolation="repeatable_read", readonly=True):
        # With penstock in the search path the names of its tables would come without it.
        await connection.execute("SET LOCAL search_path = pg_catalog, pg_temp")
        if await connection.fetchval("SELECT to_regnamespace('penstock') IS NULL"):
            return HEAD
        columns = _by_table(await connection.fetch(COLUMNS))
        constraints = _by_table(await connection.fetch(CONSTRAINTS))
        indexes = _by_table(await connection.fetch(INDEXES))
        triggers = _by_table(await connection.fetch(TRIGGERS))
        relations = {row["name"]: _table(row, columns, constraints) for row in await connection.fetch(TABLES)}
        relations |= _by_name(await connection.fetch(VIEWS))
        parts = [
            *_by_name(await connection.fetch(TYPES)).values(),
            *_by_name(await connection.fetch(SEQUENCES)).values(),
            *("\n".join([text, *indexes[name], *triggers[name]]) for name, text in relations.items()),
            *[row["definition"] for row in await connection.fetch(FUNCTIONS)],
        ]
    return "\n\n".join([HEAD.rstrip(), *parts]) + "\n"


def _table(row: asyncpg.Record, columns: Lines, constraints: Lines) -> str:
    name = row["name"]
    lines = constraints[name] if row["parent"] else columns[name] + constraints[name]
    body = ",\n".join(f"    {line}" for line in lines)
    return "".join(
        [
            f"CREATE {'UNLOGGED ' if row['unlogged'] else ''}TABLE penstock.{name}",
            f" PARTITION OF penstock.{row['parent']}" if row["parent"] else "",
            f" (\n{body}\n)" if body else "",
            f" {row['bound']}" if row["bound"] else "",
            f" PARTITION BY {row['partitioned_by']}" if row["partitioned_by"] else "",
            f" WITH ({', '.join(row['options'])})" if row["options"] else "",
            ";",
        ]
    )


def _by_table(rows: Iterable[asyncpg.Record]) -> Lines:
    found: Lines = defaultdict(list)
    for row in rows:
        found[row["table"]].append(row["definition"])
    return found


def _by_name(rows: Iterable[asyncpg.Record]) -> dict[str, str]:
    return {row["name"]: row["definition"] for row in rows}


@asynccontextmanager
async def scratch(url: str) -> AsyncIterator[str]:
    """The URL of an empty database beside the one named, which is gone afterwards."""
    name = f"scratch_{uuid4().hex}"
    await _execute(url, f"CREATE DATABASE {name} TEMPLATE template0")
    try:
        yield urlsplit(url)._replace(path=f"/{name}").geturl()
    finally:
        await _execute(url, f"DROP DATABASE {name} WITH (FORCE)")


async def _execute(url: str, statement: str) -> None:
    connection = await asyncpg.connect(url)
    try:
        await connection.execute(statement)
    finally:
        await connection.close()


async def main() -> None:
    async with await start_async() as server, scratch(server.url) as url:
        connection = await asyncpg.connect(url)
        try:
            await migrate(connection)
            FILE.write_text(await snapshot(connection), encoding="utf-8")
        finally:
            await connection.close()
    print(f"wrote {FILE}")


if __name__ == "__main__":
    asyncio.run(main())

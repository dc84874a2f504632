"""A month of a fleet, asked with DuckDB and Polars: how it went, what broke, and how large its queues should be.

    pip install duckdb polars "penstock[lake]"
    penstock lake demo                     # Spark makes the lake, once: .penstock/demo-lake
    python examples/lake_month.py [lake]

Nothing here needs Spark. A lake's tables are plain Parquet, and its manifest says which files are which table.
"""

# %% The tables
import sys

import duckdb
import polars as pl

from penstock.lake.histogram import percentile_duckdb
from penstock.lake.manifest import tables

lake = tables(sys.argv[1] if len(sys.argv) > 1 else ".penstock/demo-lake")
hourly = duckdb.read_parquet(lake["hourly"], hive_partitioning=False)
duckdb.sql("SET TimeZone = 'UTC'")


def draw(values: list[float], marks: str) -> str:
    """A mark for each value, the last one for the highest; a blank for nothing."""
    most, steps = max(values) or 1, len(marks) - 1
    return "".join(marks[0 if value <= 0 else max(1, round(steps * value / most))] for value in values)


# %% The month, day by day (DuckDB)
[(jobs, failed, first, last)] = duckdb.sql(
    "SELECT sum(arrivals), sum(failed), min(hour)::date, max(hour)::date FROM hourly"
).fetchall()
print(f"{jobs:,} jobs came in from {first} to {last}; {failed:,} attempts failed")
days = duckdb.sql(
    "SELECT hour::date AS day, sum(arrivals), sum(failed) FROM hourly GROUP BY day ORDER BY day"
).fetchall()
print("jobs by day      ", draw([number for _, number, _ in days], " ▁▂▃▄▅▆▇█"))
print("failures by day  ", draw([number for _, _, number in days], " ▁▂▃▄▅▆▇█"))

# %% The day of the incident, hour by hour (DuckDB)
incident = max(days, key=lambda day: day[2])[0]
hours = duckdb.sql(
    f"""SELECT mark, coalesce(sum(arrivals), 0), coalesce(sum(failed), 0)
        FROM range(24) AS clock (mark) LEFT JOIN hourly ON hour(hour) = mark AND hour::date = DATE '{incident}'
        GROUP BY ALL ORDER BY ALL"""
).fetchall()
print(f"most failed on {incident}:")
print("  jobs by hour    ", draw([number for _, number, _ in hours], " ▁▂▃▄▅▆▇█"))
print("  failures by hour", draw([number for _, _, number in hours], " ▁▂▃▄▅▆▇█"))

# %% What broke (Polars)
failures = pl.read_parquet(lake["failures"]).sort("count", descending=True)
print("what failed most, all ids and numbers taken out:")
for error, count, queues in failures.select("text", "count", "queues").head(3).iter_rows():
    print(f"  {count:,}× {error} in {', '.join(sorted(queues))}")

# %% The week (Polars)
week = (
    pl.read_parquet(lake["hourly"], hive_partitioning=False)
    .group_by(day=pl.col("hour").dt.weekday(), at=pl.col("hour").dt.hour())
    .agg(pl.col("arrivals").sum())
)
arrivals = {(day, at): number for day, at, number in week.iter_rows()}
field = draw([arrivals.get((day, at), 0) for day in range(1, 8) for at in range(24)], " ░▒▓█")
print("the week, by hour from midnight UTC:")
for number, name in enumerate(("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")):
    print(f"  {name} {field[number * 24 : number * 24 + 24]}")

# %% Waits: histograms of hours and types add up, and any percentile can be read from the sum (DuckDB)
waits = duckdb.sql(
    f"""WITH buckets AS (
            SELECT tenant, queue, unnest(map_entries(wait_hist), recursive := true) FROM hourly
        ), summed AS (
            SELECT tenant, queue, key, sum(value)::bigint AS number FROM buckets GROUP BY ALL
        ), together AS (
            SELECT tenant, queue, map_from_entries(list((key, number))) AS waits FROM summed GROUP BY ALL
        )
        SELECT tenant || '/' || queue, {percentile_duckdb("waits", 0.5)} / 1000, {percentile_duckdb("waits", 0.95)} / 1000 AS tail
        FROM together ORDER BY tail DESC LIMIT 5"""
).fetchall()
print("who waits longest:")
for queue, median, tail in waits:
    print(
        f"  {queue:<16} half within {median:6.1f} s, 95 % within {tail:6.1f} s {'█' * round(20 * tail / waits[0][2])}"
    )

# %% How large the queues should be (Polars)
plan = pl.read_parquet(lake["capacity_plan"]).sort("concurrency", descending=True)
print("what the lake would set:")
for tenant, queue, concurrency, share in (
    plan.select("tenant", "queue", "concurrency", "utilisation").head(3).iter_rows()
):
    print(f"  {tenant}/{queue}: {concurrency} at once, {share:.0%} used in its peak hour")

"""The lake's files asked by DuckDB and by Polars: Parquet is for everybody, and Spark need not be there.

    pip install duckdb polars "penstock[lake]"
    python examples/lake_without_spark.py [folder of bronze events]

Without a folder it makes up a small company's fortnight and asks about that.
"""

import sys
import tempfile
from datetime import UTC, datetime
from pathlib import Path

import duckdb
import polars as pl

from penstock.lake.fingerprint import failure
from penstock.lake.histogram import bucket_sql, percentile

END = datetime(2026, 11, 2, tzinfo=UTC)


def main(folder: Path) -> None:
    files = f"{folder}/*/*.parquet"

    # DuckDB: how long did jobs wait? Counted in the lake's own buckets, so that days and queues can be added up later.
    duckdb.sql("SET TimeZone = 'UTC'")
    waits = duckdb.sql(
        f"""SELECT tenant, queue, histogram({bucket_sql("wait_ms")}) AS waits, count(*) AS attempts
            FROM (SELECT *, (epoch_us(started_at) - epoch_us(ready_at)) // 1000 AS wait_ms FROM '{files}' WHERE kind = 'attempt')
            GROUP BY ALL ORDER BY attempts DESC LIMIT 3"""
    ).fetchall()
    print("the busiest queues, and how long their jobs wait:")
    for tenant, queue, histogram, attempts in waits:
        median, tail = (percentile(histogram, share) or 0 for share in (0.5, 0.99))
        print(
            f"  {tenant}/{queue}: {attempts} attempts, half within {median / 1000:.1f} s, 99 % within {tail / 1000:.1f} s"
        )

    # Polars: what failed, and how often? The rules that take ids and numbers out of errors are plain Python.
    errors = (
        pl.scan_parquet(files)
        .filter(pl.col("kind") == "attempt", pl.col("outcome") == "failed")
        .select("job_id", "error", "ended_at")
        .collect()
    )
    texts = [failure(error).text for error in errors["error"]]
    top = errors.with_columns(text=pl.Series(texts)).group_by("text").agg(pl.len().alias("times"))
    print("what failed most:")
    for text, times in top.sort(["times", "text"], descending=[True, False]).head(3).iter_rows():
        print(f"  {times}× {text}")


if __name__ == "__main__":
    if len(sys.argv) > 1:
        main(Path(sys.argv[1]))
    else:
        from penstock.lake import demo

        with tempfile.TemporaryDirectory() as made_up:
            demo.write(made_up, jobs=5_000, days=14, seed=4, end=END)
            main(Path(made_up))

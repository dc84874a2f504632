"""Every table of gold once more, by DuckDB, from the same bronze files and written apart from the Spark functions.

Only two things are shared: the rule for buckets, which is an expression of one line, and the rules for error texts,
whose Python twin is tested by itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any

import duckdb

from penstock.lake import fingerprint as f
from penstock.lake import queueing
from penstock.lake.histogram import bucket_sql, percentile
from penstock.lake.targets import Target

Rows = list[dict[str, Any]]

ATTEMPTS = """
CREATE TABLE attempts AS
SELECT tenant, job_id, attempt, queue, type, key, schedule, priority, worker, created_at, scheduled_at, ready_at, started_at, ended_at,
       greatest(0, (epoch_us(started_at) - epoch_us(coalesce(ready_at, greatest(scheduled_at, created_at), started_at))) // 1000) AS wait_ms,
       greatest(0, (epoch_us(ended_at) - epoch_us(started_at)) // 1000) AS run_ms,
       outcome, status, error, strftime(ended_at, '%Y-%m-%d') AS day
FROM events WHERE kind = 'attempt'
"""

JOBS = """
CREATE TABLE jobs AS
WITH facts AS (
    SELECT tenant, job_id, occurred_at, status,
           row_number() OVER (PARTITION BY tenant, job_id ORDER BY occurred_at DESC, xid DESC, seq DESC) AS back
    FROM (SELECT * REPLACE (CASE kind WHEN 'job' THEN 'queued' ELSE status END AS status) FROM events)
    WHERE job_id IS NOT NULL AND status IS NOT NULL
), last AS (
    SELECT tenant, job_id, CASE WHEN status IN ('succeeded', 'dead', 'held', 'cancelled') THEN status ELSE 'active' END AS status,
           CASE WHEN status IN ('succeeded', 'dead', 'held', 'cancelled') THEN occurred_at END AS ended_at
    FROM facts WHERE back = 1
), ran AS (
    SELECT tenant, job_id, count(*)::int AS attempts, count(*) FILTER (outcome = 'failed')::int AS failures,
           count(*) FILTER (outcome = 'lost')::int AS lost, sum(wait_ms)::bigint AS wait_ms, sum(run_ms)::bigint AS run_ms,
           min(started_at) AS first_started_at, arg_max(error, (ended_at, attempt)) FILTER (error IS NOT NULL) AS last_error
    FROM attempts GROUP BY ALL
), about AS (
    SELECT tenant, job_id, any_value(queue) AS queue, any_value(type) AS type, any_value(key) AS key, any_value(schedule) AS schedule,
           any_value(priority) AS priority, coalesce(min(created_at), min(occurred_at)) AS created_at, min(scheduled_at) AS scheduled_at,
           any_value(options) FILTER (kind = 'job') AS options
    FROM events WHERE job_id IS NOT NULL GROUP BY ALL
)
SELECT tenant, job_id, queue, type, key, schedule, priority, created_at, scheduled_at, first_started_at, ended_at,
       coalesce(status, 'active') AS status, coalesce(attempts, 0) AS attempts, coalesce(failures, 0) AS failures, coalesce(lost, 0) AS lost,
       coalesce(wait_ms, 0) AS wait_ms, coalesce(run_ms, 0) AS run_ms, last_error,
       coalesce(CAST(json_extract(options, '$.parents') AS varchar[]), []) AS parents, strftime(created_at, '%Y-%m-%d') AS day
FROM about LEFT JOIN last USING (tenant, job_id) LEFT JOIN ran USING (tenant, job_id)
"""

FIGURES = """
CREATE TABLE {name} AS
WITH came AS (
    SELECT tenant, queue, type, {at}(occurred_at) AS cell, count(*) FILTER (kind = 'job') AS arrivals,
           count(*) FILTER (kind = 'change') AS gone
    FROM events WHERE kind = 'job' OR (kind = 'change' AND job_id IS NOT NULL AND status = 'cancelled') GROUP BY ALL
), ended AS (
    SELECT tenant, queue, type, {at}(ended_at) AS cell, count(*) FILTER (outcome = 'succeeded') AS succeeded,
           count(*) FILTER (outcome = 'failed') AS failed, count(*) FILTER (outcome = 'lost') AS lost,
           count(*) FILTER (status = 'dead') AS dead, count(*) FILTER (status = 'held') AS held,
           count(*) FILTER (status = 'cancelled') AS cancelled, count(*) FILTER (status <> 'queued') AS ended,
           count(*) FILTER (outcome IN ('failed', 'lost') AND status = 'queued') AS retried, sum(run_ms)::bigint AS busy_ms,
           histogram({wait}) AS wait_hist, histogram({run}) AS run_hist
    FROM attempts GROUP BY ALL
)
SELECT tenant, queue, type, cell AS {column}, coalesce(arrivals, 0) AS arrivals, coalesce(succeeded, 0) AS succeeded,
       coalesce(failed, 0) AS failed, coalesce(lost, 0) AS lost, coalesce(dead, 0) AS dead, coalesce(held, 0) AS held,
       coalesce(cancelled, 0) + coalesce(gone, 0) AS cancelled, coalesce(ended, 0) AS ended, coalesce(retried, 0) AS retried, coalesce(busy_ms, 0) AS busy_ms,
       wait_hist, run_hist
FROM came FULL JOIN ended USING (tenant, queue, type, cell)
"""

FAILURES = f"""
WITH bad AS (
    SELECT *, {f.fingerprint_duckdb("error_type", "top_frame", "text")} AS fingerprint FROM (
        SELECT *, {f.type_duckdb("text")} AS error_type FROM (
            SELECT tenant, job_id, queue, type, ended_at, {f.frame_duckdb("error")} AS top_frame, {f.text_duckdb("error")} AS text
            FROM attempts WHERE outcome IN ('failed', 'lost') AND error IS NOT NULL))
), latest AS (
    SELECT tenant, fingerprint, job_id, max(ended_at) AS seen FROM bad GROUP BY ALL
), samples AS (
    SELECT tenant, fingerprint, list(job_id ORDER BY seen DESC, job_id DESC)[:5] AS sample_jobs FROM latest GROUP BY ALL
), counted AS (
    SELECT tenant, fingerprint, error_type, top_frame, text, min(ended_at) AS first_seen, max(ended_at) AS last_seen,
           count(*) AS count, count(*) FILTER (ended_at >= $since) AS count_24h,
           list_sort(list(DISTINCT queue)) AS queues, list_sort(list(DISTINCT type)) AS types
    FROM bad GROUP BY ALL
)
SELECT tenant, fingerprint, error_type, top_frame, text, first_seen, last_seen, count, count_24h,
       CASE WHEN count > count_24h THEN
           count_24h / ((count - count_24h) / greatest(1.0, (epoch_us($since::timestamptz) - epoch_us(first_seen)) / 86400e6)) END AS trend,
       first_seen >= $since AS is_new, queues, types, sample_jobs
FROM counted JOIN samples USING (tenant, fingerprint)
"""

CAPACITY = """
CREATE TABLE capacity AS
WITH came AS (
    SELECT tenant, queue, date_trunc('hour', at_) AS hour, sum(one) AS arrivals FROM (
        SELECT tenant, queue, occurred_at AS at_, (kind = 'job')::int AS one FROM events
        WHERE kind = 'job' OR (kind = 'change' AND job_id IS NOT NULL AND status = 'cancelled')
        UNION ALL SELECT tenant, queue, ended_at, 0 FROM attempts)
    GROUP BY ALL
), cost AS (
    SELECT tenant, queue, sum(run_ms) / count(*) FILTER (status IN ('succeeded', 'dead', 'held', 'cancelled')) AS service_ms
    FROM attempts GROUP BY ALL
    HAVING count(*) FILTER (status IN ('succeeded', 'dead', 'held', 'cancelled')) > 0
)
SELECT tenant, queue, ((isodow(hour) - 1) * 24 + hour(hour))::int AS hour_of_week, max(arrivals)::double AS arrivals_per_hour,
       any_value(service_ms) AS service_ms, max(arrivals) * any_value(service_ms) / 3600000 AS offered_load
FROM came LEFT JOIN cost USING (tenant, queue) GROUP BY ALL
"""

SLO = f"""
WITH counted AS (
    SELECT tenant, queue, target_wait_ms, objective, w.name AS window, count(*) AS total,
           count(*) FILTER ({bucket_sql("wait_ms")} <= {bucket_sql("target_wait_ms")}) AS good
    FROM (SELECT a.*, coalesce(t.target_wait_ms, 60000) AS target_wait_ms, coalesce(t.objective, 0.99::double) AS objective
          FROM attempts a LEFT JOIN targets t ON a.tenant = t.tenant AND a.queue = t.queue),
         (VALUES ('1h', 1), ('6h', 6), ('24h', 24), ('7d', 168), ('30d', 720)) AS w(name, hours)
    WHERE date_trunc('hour', ended_at) >= date_trunc('hour', $now::timestamptz) - to_hours(w.hours)
    GROUP BY tenant, queue, target_wait_ms, objective, w.name
)
SELECT *, good / total AS attainment, (1 - good / total) / nullif(1 - objective, 0) AS burn_rate FROM counted
"""

ANOMALIES = f"""
WITH cells AS (
    SELECT tenant, queue, date_trunc('hour', at_) AS hour, count(*) FILTER (what = 'job') AS arrivals,
           count(*) FILTER (what = 'attempt') AS ended, count(*) FILTER (what = 'attempt' AND bad) AS bad,
           histogram({bucket_sql("wait_ms")}) FILTER (what = 'attempt') AS waits
    FROM (SELECT tenant, queue, 'attempt' AS what, ended_at AS at_, outcome IN ('failed', 'lost') AS bad, wait_ms FROM attempts
          UNION ALL SELECT tenant, queue, kind, occurred_at, false, NULL FROM events
          WHERE kind = 'job' OR (kind = 'change' AND job_id IS NOT NULL AND status = 'cancelled'))
    WHERE at_ < date_trunc('hour', $now::timestamptz) AND date_trunc('hour', at_) >= date_trunc('hour', $now::timestamptz) - to_hours(8 * 168)
    GROUP BY ALL
), every AS (
    SELECT tenant, queue, unnest(generate_series(min(hour), date_trunc('hour', $now::timestamptz) - to_hours(1), to_hours(1))) AS hour
    FROM cells GROUP BY tenant, queue
), p AS (
    SELECT tenant, queue, hour, min(b) FILTER (upto >= greatest(1, ceil(0.95::double * ended))) AS place FROM (
        SELECT *, sum(n) OVER (PARTITION BY tenant, queue, hour ORDER BY b) AS upto FROM (
            SELECT tenant, queue, hour, ended, unnest(map_keys(waits)) AS b, unnest(map_values(waits)) AS n FROM cells))
    GROUP BY ALL
), metrics AS (
    SELECT tenant, queue, hour, 'arrivals' AS metric, coalesce(arrivals, 0)::double AS value, 0::double AS weight
    FROM every LEFT JOIN cells USING (tenant, queue, hour)
    UNION ALL SELECT tenant, queue, hour, 'failure_share', bad / ended, ended FROM cells WHERE ended > 0
    UNION ALL SELECT tenant, queue, hour, 'wait_p95', CASE WHEN place = 0 THEN 0 ELSE 1.02::double ** (place - 0.5::double) END, 0
    FROM p WHERE place IS NOT NULL
), slots AS (SELECT *, (isodow(hour) - 1) * 24 + hour(hour) AS slot FROM metrics),
usual AS (SELECT tenant, queue, metric, slot, median(value) AS expected FROM slots GROUP BY ALL HAVING count(*) >= 3),
off AS (SELECT * FROM slots JOIN usual USING (tenant, queue, metric, slot)),
spread AS (SELECT tenant, queue, metric, slot, median(abs(value - expected)) AS spread FROM off GROUP BY ALL),
scored AS (
    SELECT *, (value - expected) / greatest(1.4826::double * spread, CASE metric
        WHEN 'arrivals' THEN greatest(1, sqrt(expected)) WHEN 'failure_share' THEN 0.02::double + 0.5::double / sqrt(weight)
        ELSE 1000 + 0.25::double * expected END) AS score
    FROM off JOIN spread USING (tenant, queue, metric, slot)
)
SELECT tenant, queue, hour, metric, value, expected, score, CASE WHEN score > 0 THEN 'high' ELSE 'low' END AS direction
FROM scored WHERE abs(score) >= 4
"""

FLOWS = """
WITH RECURSIVE edges AS (
    SELECT c.tenant, c.job_id AS child, p.job_id AS parent
    FROM (SELECT tenant, job_id, unnest(parents) AS parent FROM jobs) c JOIN jobs p ON p.tenant = c.tenant AND p.job_id = c.parent
), near AS (
    SELECT tenant, child AS a, parent AS b FROM edges UNION SELECT tenant, parent, child FROM edges
), reach AS (
    SELECT tenant, a, b FROM near UNION SELECT r.tenant, r.a, n.b FROM reach r JOIN near n ON n.tenant = r.tenant AND n.a = r.b
), member AS (
    SELECT tenant, a AS job_id, min(least(a, b)) AS root_id FROM reach GROUP BY ALL
), flow AS (
    SELECT m.tenant, root_id, count(*)::int AS jobs, min(created_at) AS began_at, max(ended_at) AS last_end,
           arg_max(job_id, (ended_at, job_id)) FILTER (ended_at IS NOT NULL) AS last_id,
           min(list_position(['active', 'held', 'dead', 'cancelled', 'succeeded'], status)) AS worst
    FROM member m JOIN jobs USING (tenant, job_id) GROUP BY ALL
), path AS (
    SELECT f.tenant, f.root_id, f.last_id AS job_id, 1 AS step FROM flow f WHERE last_id IS NOT NULL
    UNION ALL
    SELECT tenant, root_id, before, step + 1 FROM (
        SELECT p.tenant, p.root_id, p.step, arg_max(e.parent, (j.ended_at, j.job_id)) AS before
        FROM path p JOIN edges e ON e.tenant = p.tenant AND e.child = p.job_id
        JOIN jobs j ON j.tenant = e.tenant AND j.job_id = e.parent AND j.ended_at IS NOT NULL GROUP BY ALL)
), paths AS (
    SELECT tenant, root_id, list(job_id ORDER BY step DESC) AS critical_path, arg_max(created_at, step) AS first_created
    FROM path JOIN jobs USING (tenant, job_id) GROUP BY ALL
)
SELECT tenant, root_id, jobs, began_at, CASE WHEN worst > 1 THEN last_end END AS ended_at,
       coalesce((epoch_us(last_end) - epoch_us(first_created)) // 1000, 0) AS critical_ms, coalesce(critical_path, []) AS critical_path,
       ['active', 'held', 'dead', 'cancelled', 'succeeded'][worst] AS status
FROM flow LEFT JOIN paths USING (tenant, root_id)
"""

SCHEDULES = f"""
WITH puts AS (
    SELECT tenant, schedule, occurred_at AS at_, coalesce(detail->>'cron', 'dropped') AS cron, detail->>'tz' AS tz, detail->>'paused' AS paused,
           row_number() OVER (PARTITION BY tenant, schedule ORDER BY occurred_at, xid, seq) AS number
    FROM events WHERE kind = 'change' AND job_id IS NULL AND schedule IS NOT NULL
), turns AS (
    SELECT p.* FROM puts p LEFT JOIN puts b ON b.tenant = p.tenant AND b.schedule = p.schedule AND b.number = p.number - 1
    WHERE b.number IS NULL OR (b.cron, coalesce(b.tz, ''), coalesce(b.paused, '')) <> (p.cron, coalesce(p.tz, ''), coalesce(p.paused, ''))
), fires AS (
    SELECT tenant, schedule, job_id, coalesce(run_at, scheduled_at, created_at) AS due, created_at FROM events WHERE kind = 'job' AND schedule IS NOT NULL
), placed AS (
    SELECT f.*, lead(due) OVER (PARTITION BY f.tenant, f.schedule ORDER BY due, job_id) AS next,
           coalesce(put.cron || ' ' || coalesce(put.tz, ''), 'unknown') AS timetable, cut.at_ AS cut
    FROM fires f
    ASOF LEFT JOIN turns put ON put.tenant = f.tenant AND put.schedule = f.schedule AND put.at_ <= f.due
    ASOF LEFT JOIN turns cut ON cut.tenant = f.tenant AND cut.schedule = f.schedule AND cut.at_ > f.due
), spaced AS (
    SELECT *, greatest(0, (epoch_us(created_at) - epoch_us(due)) // 1000) AS late_ms,
           CASE WHEN cut IS NULL OR cut > next THEN nullif(epoch_us(next) - epoch_us(due), 0)::double END AS gap,
           (epoch_us(coalesce(least(next, cut), date_trunc('hour', $now::timestamptz))) - epoch_us(due))::double AS silence,
           strftime(due, '%w %H:%M:%S') AS slot, due::date - DATE '1970-01-01' AS number
    FROM placed
), known AS (
    SELECT *, min(number) OVER (PARTITION BY tenant, schedule, timetable) AS first,
           max(gap) OVER (PARTITION BY tenant, schedule, timetable ORDER BY number RANGE BETWEEN 8 PRECEDING AND 1 PRECEDING) AS longest
    FROM spaced
),
own AS (SELECT tenant, schedule, timetable, slot, median(gap) AS own, count(gap) AS seen FROM spaced GROUP BY ALL),
judged AS (
    SELECT *, coalesce(greatest(0, floor(silence / CASE WHEN seen >= 3 THEN own WHEN first <= number - 7 THEN longest END + 0.5) - 1), 0)::bigint AS missed
    FROM known JOIN own USING (tenant, schedule, timetable, slot)
)
SELECT tenant, schedule, due::date AS day, count(*) AS fires, histogram({bucket_sql("late_ms")}) AS late_hist,
       max(late_ms)::double AS max_ms, sum(missed)::bigint AS missed
FROM judged GROUP BY ALL
"""


class Oracle:
    """Answers about one folder of bronze files, or some rows of events."""

    def __init__(
        self, events: str, *, as_of: datetime, targets: Sequence[Target] = (), threads: int = 1
    ) -> None:
        self.duckdb = duckdb.connect()
        self.as_of = as_of
        self.duckdb.execute(f"SET TimeZone = 'UTC'; SET threads = {threads}")
        self.duckdb.execute(f"CREATE TABLE events AS SELECT * FROM {events}")
        self.duckdb.execute(
            "CREATE TABLE targets (tenant text, queue text, target_wait_ms bigint, objective double)"
        )
        for one in targets:
            row = [one.tenant, one.queue, round(one.seconds * 1000), one.objective]
            self.duckdb.execute("INSERT INTO targets VALUES ($1, $2, $3, $4)", row)
        self.duckdb.execute(ATTEMPTS)
        self.duckdb.execute(JOBS)
        wait, run = bucket_sql("wait_ms"), bucket_sql("run_ms")
        for name, column, at in (("hourly", "hour", "hour_of"), ("daily", "day", "day_of")):
            self.duckdb.execute(
                "CREATE MACRO hour_of(t) AS date_trunc('hour', t)"
                if column == "hour"
                else "CREATE MACRO day_of(t) AS t::date"
            )
            self.duckdb.execute(FIGURES.format(name=name, column=column, at=at, wait=wait, run=run))
        self.duckdb.execute(CAPACITY)

    def table(self, name: str) -> Rows:
        return {"capacity_plan": self._plan, "schedules": self._schedules}.get(
            name, lambda: self._plain(name)
        )()

    def _rows(self, query: str, **given: Any) -> Rows:
        found = self.duckdb.execute(query, given) if given else self.duckdb.execute(query)
        columns = [column[0] for column in found.description]
        return [dict(zip(columns, row, strict=True)) for row in found.fetchall()]

    def _plain(self, name: str) -> Rows:
        hour = self.as_of.replace(minute=0, second=0, microsecond=0)
        match name:
            case "failures":
                return self._rows(
                    "SELECT * FROM ("
                    + FAILURES.replace("$since", "($now::timestamptz - INTERVAL 24 HOUR)")
                    + ")",
                    now=hour,
                )
            case "slo":
                return self._rows(SLO, now=self.as_of)
            case "anomalies":
                return self._rows(ANOMALIES, now=self.as_of)
            case "flows":
                return self._rows(FLOWS)
            case "usage":
                return self._rows(
                    "SELECT tenant, day, queue, type, arrivals AS jobs,"
                    " coalesce(list_sum(map_values(run_hist)), 0)::bigint AS attempts, busy_ms FROM daily"
                )
            case "hourly" | "daily":
                rows = self._rows(f"SELECT * FROM {name}")
                return [
                    {**row, "wait_hist": row["wait_hist"] or {}, "run_hist": row["run_hist"] or {}}
                    for row in rows
                ]
            case _:
                return self._rows(f"SELECT * FROM {name}")

    def _schedules(self) -> Rows:
        rows = self._rows(SCHEDULES, now=self.as_of)
        return [
            {**row, "p50_ms": percentile(row["late_hist"], 0.5), "p99_ms": percentile(row["late_hist"], 0.99)}
            for row in rows
        ]

    def _plan(self) -> Rows:
        plans = []
        peaks = self._rows(
            "SELECT DISTINCT ON (tenant, queue) * FROM capacity WHERE service_ms IS NOT NULL"
            " ORDER BY tenant, queue, offered_load DESC, hour_of_week"
        )
        for peak in peaks:
            tenant, queue, load, service = (
                peak[name] for name in ("tenant", "queue", "offered_load", "service_ms")
            )
            [(runs,)] = self.duckdb.execute(
                f"SELECT histogram({bucket_sql('run_ms')}) FROM attempts WHERE tenant = $1 AND queue = $2",
                [tenant, queue],
            ).fetchall()
            target = self.duckdb.execute(
                "SELECT target_wait_ms, objective FROM targets WHERE tenant = $1 AND queue = $2",
                [tenant, queue],
            ).fetchone()
            servers = queueing.servers_for(load, service, *(target or (60_000, 0.99)))
            lease = float(min(3600, max(10, -(-(percentile(runs or {}, 0.99) or 0) * 1.5 // 1000))))
            plans.append({
                "tenant": tenant, "queue": queue, "concurrency": servers, "lease_seconds": lease, "heartbeat_seconds": lease / 3,
                "peak_hour_of_week": peak["hour_of_week"],
                "expected_wait_ms": queueing.mean_wait_ms(load, servers, service) if load else 0.0, "utilisation": load / servers,
            })  # fmt: skip
        return plans

"""Named views of every store: the questions that screens, playbooks and reports share, asked once.

Names and columns are a contract. Times and durations are ns unless the name says otherwise. Sums are BIGINT, so that Arrow carries
integers.
"""

from __future__ import annotations

from dataclasses import dataclass

import duckdb

_SECOND = 1_000_000_000


@dataclass(frozen=True, slots=True)
class View:
    """One view and what one row of it is."""

    name: str
    doc: str
    sql: str

    @property
    def ddl(self) -> str:
        return f'CREATE OR REPLACE VIEW "{self.name}" AS {self.sql}'


VIEWS: dict[str, View] = {}


def _view(name: str, doc: str, sql: str) -> None:
    VIEWS[name] = View(name, doc, sql.strip())


def create_views(connection: duckdb.DuckDBPyConnection) -> None:
    """Creates or replaces all views."""
    for view in VIEWS.values():
        connection.execute(view.ddl)


def _attr(name: str, kind: str = "BIGINT", table: str = "") -> str:
    return f"""TRY_CAST(({table}attrs ->> '$."{name}"') AS {kind})"""


def _stages(**stages: str) -> str:
    """Sum of a request's child spans per stage; 0 where other stages were recorded and this was not."""
    return ", ".join(f"coalesce(sum(dur) FILTER (name IN ({names})), 0)::BIGINT AS {column}" for column, names in stages.items())


_view("request", "A request as the server saw it. Stage times are sums of its child spans; null where no stage was recorded.", f"""
WITH stage AS (
    SELECT trace_id, {_stages(
        queue="'queue'", tokenize="'tokenize'", image="'image.preprocess', 'image.encode'", prefill="'prefill'", decode="'decode'",
        preempted="'preempted'", detokenize="'detokenize'", send="'send'",
    )}
    FROM span WHERE parent_id IS NOT NULL AND name NOT IN ('request', 'client.request') GROUP BY trace_id
), emitted AS (
    SELECT trace_id, min(ts) AS first, max(ts) AS last, count(*) AS n FROM token GROUP BY trace_id
)
SELECT r.trace_id, r.ts, r.dur, r.status, {_attr("moe.rank", "INTEGER", "r.")} AS rank,
    {_attr("gen_ai.usage.input_tokens", table="r.")} AS input_tokens, {_attr("gen_ai.usage.output_tokens", table="r.")} AS output_tokens,
    {_attr("moe.image_tokens", table="r.")} AS image_tokens, {_attr("moe.cached_tokens", table="r.")} AS cached_tokens,
    {_attr("moe.priority", "INTEGER", "r.")} AS priority, {_attr("moe.preemptions", "INTEGER", "r.")} AS preemptions,
    s.queue, s.tokenize, s.image, s.prefill, s.decode, s.preempted, s.detokenize, s.send,
    e.first - r.ts AS ttft, CASE WHEN e.n > 1 THEN (e.last - e.first) / (e.n - 1) END AS tpot, r.attrs
FROM span r LEFT JOIN stage s USING (trace_id) LEFT JOIN emitted e USING (trace_id)
WHERE r.name = 'request'
""")  # fmt: skip

_view("client_request", "A request as our traffic client saw it.", f"""
SELECT trace_id, ts, dur, status, {_attr("ttft_ns")} AS ttft, {_attr("tpot_ns", "DOUBLE")} AS tpot,
    attrs ->> '$."workbench.kind"' AS kind, attrs ->> '$."workbench.phase"' AS phase, attrs
FROM span WHERE name = 'client.request'
""")

_SEGMENTS = ("attention", "router", "exchange", "dispatch", "experts", "combine")
_cumulative = {name: "ts + " + " + ".join(_SEGMENTS[: index + 1]) for index, name in enumerate(_SEGMENTS)}

_view("frontier", "A layer of a detailed step, all ranks together. F_j is when the last rank left segment j; increments F_j - F_(j-1) "
"add up to the layer's time exactly. Ranks of one host share a clock; on several hosts correct clocks first.", f"""
WITH f AS (
    SELECT step, stage, micro_batch, layer, max(ts) AS f_start, {", ".join(f"max({c}) AS f_{n}" for n, c in _cumulative.items())},
        avg(experts) AS mean_experts, max(experts) AS max_experts, arg_max(rank, (experts, -rank)) AS argmax_experts_rank,
        avg(tokens_routed) AS rows_mean, max(tokens_routed) AS rows_max, arg_max(rank, (tokens_routed, -rank)) AS rows_argmax_rank,
        arg_max(rank, ({_cumulative["experts"]}, -rank)) AS last_rank, count(*) AS ranks
    FROM layer GROUP BY step, stage, micro_batch, layer
)
SELECT step, stage, micro_batch, layer, f_start AS t_start, f_combine AS t_end,
    {", ".join(f"f_{n} - f_{p} AS {n}" for p, n in zip(("start", *_SEGMENTS), _SEGMENTS, strict=False))}, f_combine - f_start AS total,
    mean_experts, max_experts, argmax_experts_rank, rows_mean, rows_max, rows_argmax_rank, rows_max / nullif(rows_mean, 0) AS imbalance,
    last_rank, ranks
FROM f
""")

_view("rank_layer", "A layer of a detailed step on one rank, with the time of one expert row.", """
SELECT *, experts / 1e3 / nullif(tokens_routed, 0) AS us_per_row FROM layer
""")

_view("expert_heat", "Assignments of one logical expert over the whole run.", """
SELECT layer, expert, sum(tokens)::BIGINT AS tokens
FROM (SELECT layer, unnest(range(len(tokens)))::INTEGER AS expert, unnest(tokens) AS tokens FROM expert_load)
GROUP BY layer, expert
""")

_view("expert_heat_window", "Assignments of one logical expert in one second.", f"""
SELECT bucket, layer, expert, sum(tokens)::BIGINT AS tokens
FROM (
    SELECT ts // {_SECOND} * {_SECOND} AS bucket, layer, unnest(range(len(tokens)))::INTEGER AS expert, unnest(tokens) AS tokens
    FROM expert_load
)
GROUP BY bucket, layer, expert
""")

_view("slot_heat", "Rows computed by one physical slot of one rank under one placement.", """
SELECT layer, rank, slot, sum(rows)::BIGINT AS rows, placement
FROM (SELECT layer, rank, placement, unnest(range(len(physical)))::INTEGER AS slot, unnest(physical) AS rows FROM expert_load)
GROUP BY layer, rank, slot, placement
""")

_view("collective_wait", "A collective on one rank: how long it waited for the last to enter, and how long it took from then on.", """
SELECT step, layer, op, "group", seq, rank, last - enter AS wait, exit - last AS transfer,
    list_sum(sent)::BIGINT AS bytes_sent, list_sum(received)::BIGINT AS bytes_received
FROM (SELECT *, max(enter) OVER (PARTITION BY "group", seq, step) AS last FROM collective)
""")

_view("wait_matrix", "How long one rank waited for another that entered last, over all collectives of one kind.", """
WITH entered AS (
    SELECT op, "group", seq, step, max(enter) AS last, arg_max(rank, (enter, -rank)) AS on_rank
    FROM collective GROUP BY op, "group", seq, step
)
SELECT c.op, c.rank, e.on_rank, sum(e.last - c.enter)::BIGINT AS wait, count(*) AS n
FROM collective c JOIN entered e USING (op, "group", seq, step)
WHERE c.rank <> e.on_rank GROUP BY c.op, c.rank, e.on_rank
""")

_view("throughput", "One second of stepping: tokens over all ranks of the first pipeline stage; running and waiting: mean over steps.", f"""
SELECT ts // {_SECOND} * {_SECOND} AS bucket,
    coalesce(sum(prefill_tokens) FILTER (stage = 0), 0)::BIGINT AS prefill_tokens,
    coalesce(sum(decode_tokens) FILTER (stage = 0), 0)::BIGINT AS decode_tokens,
    count(DISTINCT step) AS steps, quantile_cont(dur / 1e6, 0.5) AS step_ms_p50, max(dur) / 1e6 AS step_ms_max,
    coalesce(sum(running) FILTER (stage = 0), 0) / nullif(count(DISTINCT (step, micro_batch)) FILTER (stage = 0), 0) AS running,
    coalesce(sum(waiting) FILTER (stage = 0), 0) / nullif(count(DISTINCT (step, micro_batch)) FILTER (stage = 0), 0) AS waiting
FROM step GROUP BY bucket
""")

_view("memory_phase", "Largest memory of one rank in one phase, bytes. rank is null for processes that are no rank.", """
SELECT rank, phase, max(rss_anon) AS rss_anon, max(rss_file) AS rss_file, max(rss_shmem) AS rss_shmem, max(hwm) AS hwm,
    max(cgroup_anon) AS cgroup_anon, min(cgroup_limit) AS cgroup_limit, count(*) AS samples
FROM memory GROUP BY rank, phase
""")

_view("stage_latency", "Latency of one stage of a request, over all its child spans, ns.", """
SELECT name, count(*) AS n, quantile_cont(dur, 0.5) AS p50, quantile_cont(dur, 0.9) AS p90, quantile_cont(dur, 0.99) AS p99,
    max(dur) AS max, sum(dur)::BIGINT AS total
FROM span WHERE parent_id IS NOT NULL AND name NOT IN ('request', 'client.request') GROUP BY name
""")

_view("loss", "A known loss: rows counted as dropped, or segments (first_seq to last_seq) that a producer numbered and nobody stored.", """
SELECT ts, resource_id, 'drop' AS kind, "table", rows, NULL::VARCHAR AS boot, NULL::BIGINT AS first_seq, NULL::BIGINT AS last_seq, reason
FROM "drop"
UNION ALL
SELECT recv_ts, producer, 'gap', NULL, NULL, boot, before + 1, seq - 1, 'ledger'
FROM (SELECT *, lag(seq, 1, -1) OVER (PARTITION BY producer, boot ORDER BY seq) AS before FROM ledger)
WHERE seq - before > 1
""")

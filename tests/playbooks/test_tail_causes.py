"""The other causes of tail latency, on stores of simulated engines and on hand-made rows: found when there, quiet when not."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import pytest

from playbooks.document import Diagnosis, Finding
from playbooks.runner import diagnose

MS = 1_000_000
T0 = 1_790_000_000_000_000_000
CHAT = {"rate": 25, "prompt": 24, "answer": 30, "image_share": 0.0, "requests": 36}
SMALL = {"layers": 2, "detail_every": 4}


def outcome(found: Diagnosis, cause: str) -> str:
    return {check.id: check.outcome for check in found.checks}[cause]


def said(found: Diagnosis) -> str:
    return "\n".join(f"{check.id} {check.outcome}: {check.summary}" for check in found.checks)


def serious(found: Diagnosis) -> list[Finding]:
    return [one for one in found.findings if one.severity != "info"]


def only(found: Diagnosis, cause: str) -> Finding:
    """The one root finding."""
    roots = [one for one in serious(found) if one.role == "root"]
    assert [one.id for one in roots] == [cause], said(found)
    assert serious(found)[0].id == cause
    return roots[0]


_SIMULATED: dict[str, Any] = {}
TRAFFIC: dict[str, dict[str, Any]] = {
    "chat": CHAT | {"requests": 60, "answer": 14},
    "prompts": {"rate": 8, "prompt": 500, "answer": 4, "requests": 40},
}


def simulated(lab: Any, traffic: str) -> Any:
    """A healthy engine that has run; its rows are the caller's to change. Simulated once for all tests of this file."""
    if traffic not in _SIMULATED:
        machine = lab.Machine(**SMALL if traffic == "chat" else {"layers": 3})
        _SIMULATED[traffic] = lab.make(traffic=lab.Traffic(**TRAFFIC[traffic]), machine=machine, placement="balanced").run()
    return copy.deepcopy(_SIMULATED[traffic])


def with_long(engine: Any, every: int, text: int, answer: int) -> None:
    """Every so many requests a long prompt."""
    arrivals = engine._arrivals

    def mixed() -> list[Any]:
        sequences = arrivals()
        for sequence in sequences[every // 2 :: every]:
            sequence.text, sequence.answer = text, answer
        return sequences

    engine._arrivals = mixed


# -- prefill-interference, encoder-block ----------------------------------------------------------------------------------------------


def test_long_prompts_between_answers(lab: Any) -> None:
    engine = lab.make(traffic=lab.Traffic(**CHAT), machine=lab.Machine(max_tokens=2048, **SMALL), placement="balanced")
    with_long(engine, 5, 2000, 1)
    found = diagnose(lab.record(engine.run()), "tail-latency", argv=())
    first = only(found, "tail.prefill-interference")
    assert first.remedy[0].config == {"max_tokens_per_step": pytest.approx(512, abs=64)}
    assert first.impact is not None and first.impact.share > 0.5


def test_small_chunks_do_not_hold_answers_up(lab: Any) -> None:
    engine = lab.make(traffic=lab.Traffic(**CHAT), machine=lab.Machine(max_tokens=96, **SMALL), placement="balanced")
    with_long(engine, 5, 2000, 1)
    found = diagnose(lab.record(engine.run()), "tail-latency", argv=())
    assert outcome(found, "tail.prefill-interference") == "pass", said(found)


def test_images_encoded_between_answers(lab: Any) -> None:
    traffic = lab.Traffic(**CHAT | {"image_share": 0.3, "image_tokens": 16})
    found = diagnose(
        lab.run(lab.Fault(encode_ms=60), traffic=traffic, machine=lab.Machine(**SMALL), placement="balanced"), "tail-latency", argv=()
    )
    only(found, "tail.encoder-block")
    quick = diagnose(
        lab.run(lab.Fault(encode_ms=1), traffic=traffic, machine=lab.Machine(**SMALL), placement="balanced"), "tail-latency", argv=()
    )
    assert quick.verdict == "healthy", said(quick)
    assert outcome(quick, "tail.encoder-block") == "pass"


def test_few_tokens_are_not_judged(lab: Any) -> None:
    traffic = lab.Traffic(rate=8, prompt=500, answer=2, requests=70)
    found = diagnose(lab.run(traffic=traffic, machine=lab.Machine(**SMALL), placement="balanced"), "tail-latency", argv=())
    assert outcome(found, "tail.prefill-interference") == "skipped"


# -- first-shape ----------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("told", [True, False])
def test_shapes_compiled_while_serving(lab: Any, told: bool) -> None:
    fault, traffic = lab.Fault(compile_ms=400, compile_told=told), lab.Traffic(**CHAT | {"image_share": 0.3})
    found = diagnose(lab.run(fault, traffic=traffic, machine=lab.Machine(**SMALL), placement="balanced"), "tail-latency", argv=())
    first = only(found, "tail.first-shape")
    assert first.severity == ("error" if told else "warning")


# -- long-context, dp-imbalance ---------------------------------------------------------------------------------------------------------


def test_a_long_conversation_on_one_rank(lab: Any) -> None:
    machine = lab.Machine(max_tokens=4096, context=400.0, **SMALL)
    engine = lab.make(traffic=lab.Traffic(**CHAT | {"answer": 60, "requests": 50}), machine=machine, placement="balanced")
    with_long(engine, 50, 12_000, 500)
    found = diagnose(lab.record(engine.run()), "tail-latency", argv=())
    holder = max((row for row in engine.rows["span"] if row["parent_id"] is None), key=lambda row: row["dur"])
    first = only(found, "tail.long-context")
    assert first.subject.labels["ranks"] == [json.loads(holder["attrs"])["moe.rank"]]


def test_a_router_with_a_favourite(lab: Any) -> None:
    traffic = lab.Traffic(rate=60, prompt=60, answer=20, image_share=0.0, requests=160)
    found = diagnose(
        lab.run(lab.Fault(sticky=0.6, where=1), traffic=traffic, machine=lab.Machine(max_sequences=4, **SMALL), placement="balanced"),
        "tail-latency",
        argv=(),
    )
    first = only(found, "tail.dp-imbalance")
    assert first.subject.labels["ranks"] == [1]
    assert first.subject.labels["by"] == "counts"
    assert all(one.role == "cascade" for one in serious(found)[1:])


# -- kv-preempt -------------------------------------------------------------------------------------------------------------------------


def preempting(lab: Any, full: bool) -> Any:
    """Every fourth request is thrown out once and its prompt computed again."""
    engine = simulated(lab, "chat")
    roots = [row for row in engine.rows["span"] if row["name"] == "request"]
    for number, row in enumerate(roots[::4]):
        tokens = json.loads(row["attrs"])["gen_ai.usage.input_tokens"]
        span = dict(row, name="prefill", parent_id=row["span_id"], kind="internal", span_id=f"f{number:015x}")
        engine.rows["span"].append(dict(span, attrs=json.dumps({"moe.tokens": 2 * tokens + 20})))
    for row in engine.rows["step"]:
        row["preempted"] = int(row["step"] % 40 == 20 and row["rank"] == 3)
        row["kv_used"] = row["kv_total"] if full and row["rank"] == 3 else row["kv_used"]
    return lab.record(engine)


def test_a_pool_that_throws_sequences_out(lab: Any) -> None:
    found = diagnose(preempting(lab, full=True), "tail-latency", argv=())
    first = only(found, "tail.kv-preempt")
    assert first.subject.labels["ranks"] == [3]
    assert first.impact is not None and first.impact.share > 0.05


def test_a_preemption_without_a_full_pool_is_no_small_pool(lab: Any) -> None:
    assert outcome(diagnose(preempting(lab, full=False), "tail-latency", argv=()), "tail.kv-preempt") == "pass"


# -- frontend-cpu, prefix-miss: hand-made requests --------------------------------------------------------------------------------------


def client_rows(engine: Any, late: Callable[[int], tuple[int, int]]) -> None:
    """The client's side of every request: `late(i)` ns before the engine has it, and from each token to the client."""
    tokens: dict[str, list[int]] = {}
    for row in engine.rows["token"]:
        tokens.setdefault(row["trace_id"], []).append(row["ts"])
    for number, row in enumerate([row for row in engine.rows["span"] if row["name"] == "request"]):
        before, after = late(number)
        begin, end = row["ts"] - before, max(tokens[row["trace_id"]]) + after
        attrs = {"ttft_ns": min(tokens[row["trace_id"]]) + after - begin, "busy": 0}
        span = dict(row, name="client.request", kind="client", span_id=f"c{number:015x}", ts=begin, dur=end - begin)
        engine.rows["span"].append(dict(span, attrs=json.dumps(attrs)))


@pytest.mark.parametrize(("late", "expected"), [((150 * MS, 120 * MS), "fail"), ((2 * MS, 3 * MS), "pass")])
def test_a_front_end_that_gets_no_time(lab: Any, late: tuple[int, int], expected: str) -> None:
    engine = simulated(lab, "chat")
    client_rows(engine, lambda number: late)
    found = diagnose(lab.record(engine), "tail-latency", argv=())
    assert outcome(found, "tail.frontend-cpu") == expected, said(found)
    if expected == "fail":
        only(found, "tail.frontend-cpu")
    else:
        assert found.verdict == "healthy", said(found)


def test_clients_with_another_clock_are_not_judged(lab: Any) -> None:
    engine = simulated(lab, "chat")
    client_rows(engine, lambda number: (-900 * MS, 950 * MS))
    assert outcome(diagnose(lab.record(engine), "tail-latency", argv=()), "tail.frontend-cpu") == "not_applicable"


def requests(cases: Iterable[tuple[int, int, int, int]]) -> dict[str, list[dict[str, Any]]]:
    """Rows of requests of (prompt tokens, cached tokens, ms in the queue, ms to the first token after it)."""
    rows: dict[str, list[dict[str, Any]]] = {"span": [], "token": []}
    for number, (tokens, cached, queue, rest) in enumerate(cases):
        trace, root, ts = f"{number:032x}", f"{number:016x}", T0 + number * 400 * MS
        attrs = {"gen_ai.usage.input_tokens": tokens, "moe.cached_tokens": cached, "moe.rank": 0}
        span = {"ts": ts, "trace_id": trace, "span_id": root, "resource_id": "api", "kind": "server", "status": "ok"}
        rows["span"].append(span | {"dur": (queue + rest + 5) * MS, "parent_id": None, "name": "request", "attrs": json.dumps(attrs)})
        child = {"parent_id": root, "span_id": f"a{number:015x}", "name": "queue", "kind": "internal", "attrs": "{}"}
        rows["span"].append(span | child | {"dur": queue * MS})
        rows["token"].append({"ts": ts + (queue + rest) * MS, "trace_id": trace, "index": 0, "step": number, "rank": 0})
    return rows


def prefix_cases(kind: str) -> list[tuple[int, int, int, int]]:
    rng = np.random.default_rng(4)
    made = []
    for number in range(120):
        tokens = int(rng.integers(900, 1100))
        missed = number % 5 == 0
        cached = 0 if missed and kind == "missed" else int(0.85 * tokens)
        queue = 300 if missed and kind == "queued" else 1
        made.append((tokens, cached, queue, 10 + int(0.2 * (tokens - cached)) + int(rng.integers(0, 5))))
    return made


@pytest.mark.parametrize(("kind", "expected"), [("missed", "fail"), ("queued", "pass"), ("well", "pass")])
def test_slow_prompts_that_missed_the_cache(lab: Any, kind: str, expected: str) -> None:
    found = diagnose(lab.with_rows(requests(prefix_cases(kind))), "tail-latency", argv=())
    assert outcome(found, "tail.prefix-miss") == expected, said(found)
    if expected == "fail":
        assert "0% of their tokens cached" in found.findings[0].summary


# -- capacity-drop ----------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("dropped", "expected"), [(0.0, "pass"), (0.004, "warn"), (0.05, "fail")])
def test_dropped_assignments(lab: Any, dropped: float, expected: str) -> None:
    engine = simulated(lab, "prompts")
    for row in engine.rows["expert_load"]:
        row["dropped"] = int(dropped * sum(row["tokens"])) if row["layer"] == 2 else 0
    found = diagnose(lab.record(engine), "tail-latency", argv=())
    assert outcome(found, "tail.capacity-drop") == expected, said(found)
    if expected != "pass":
        assert only(found, "tail.capacity-drop").subject.labels["layers"] == [2]


# -- pipeline-bubble --------------------------------------------------------------------------------------------------------------------


def pipeline(loads: tuple[float, float], micro: int = 4) -> dict[str, list[dict[str, Any]]]:
    """Two stages of one rank each; stage s takes loads[s] ms for a micro-batch of 2 layers."""
    rows: dict[str, list[dict[str, Any]]] = {"step": [], "layer": []}
    for step in range(60):
        done = [[0.0] * micro, [0.0] * micro]
        for batch in range(micro):
            for stage in (0, 1):
                begin = max(done[stage][batch - 1] if batch else 0.0, done[0][batch] if stage else 0.0)
                done[stage][batch] = begin + loads[stage]
                ts, dur = T0 + step * 100 * MS + int(begin * MS), int(loads[stage] * MS)
                common = {"step": step, "rank": stage, "stage": stage, "micro_batch": batch}
                rows["step"].append(
                    common | {"ts": ts, "dur": dur, "sync": 0, "prefill_tokens": 64, "decode_tokens": 0, "context_tokens": 0, "running": 1,
                              "waiting": 0, "kv_used": 1, "kv_total": 10, "preempted": 0, "placement": 0, "requests": []})  # fmt: skip
                for layer in (0, 1):
                    half = dur // 2
                    rows["layer"].append(
                        common | {"layer": 2 * stage + layer, "ts": ts + layer * half, "attention": half, "router": 0, "exchange": 0,
                                  "dispatch": 0, "experts": 0, "combine": 0, "tokens_in": 64, "tokens_routed": 0, "active": 0,
                                  "clock": "host"})  # fmt: skip
    return rows


@pytest.mark.parametrize(("loads", "expected"), [((4.0, 4.0), "pass"), ((4.0, 9.0), "fail")])
def test_a_stage_that_the_others_wait_for(lab: Any, loads: tuple[float, float], expected: str) -> None:
    found = diagnose(lab.with_rows(pipeline(loads), world_size=2), "tail-latency", argv=())
    assert outcome(found, "tail.pipeline-bubble") == expected, said(found)
    if expected == "fail":
        assert only(found, "tail.pipeline-bubble").subject.labels["stage"] == 1


# -- spec-reject: metrics of an engine that drafts --------------------------------------------------------------------------------------


def drafting(accepted: float, seconds: float, drafts: bool = True) -> dict[str, list[dict[str, Any]]]:
    """Two scrapes a minute apart: 1000 rounds of 4 drafted tokens, and the mean time of a token."""
    rows = []
    for moment, part in ((0, 0.0), (60_000, 1.0)):
        values = {"vllm:spec_decode_num_drafts_total": 1000.0, "vllm:spec_decode_num_draft_tokens_total": 4000.0}
        values["vllm:spec_decode_num_accepted_tokens_total"] = 4000.0 * accepted
        common = {"ts": T0 + moment * MS, "resource_id": "engine", "labels": "{}"}
        for name, value in values.items() if drafts else ():
            rows.append(common | {"name": name, "kind": "counter", "value": part * value})
        itl = {"name": "vllm:inter_token_latency_seconds", "kind": "histogram", "value": part * seconds * 5000, "count": int(part * 5000)}
        rows.append(common | itl)
    span = {"ts": T0, "dur": 60_000 * MS, "trace_id": "0" * 32, "span_id": "0" * 16, "parent_id": None, "name": "request", "kind": "server",
            "resource_id": "engine", "status": "ok", "attrs": "{}"}  # fmt: skip
    return {"metric": rows, "span": [span]}


def test_drafts_that_are_rejected(lab: Any) -> None:
    low = diagnose(lab.with_rows(drafting(0.2, 0.030)), "tail-latency", argv=())
    assert outcome(low, "tail.spec-reject") == "warn", said(low)
    assert low.findings[0].confidence.basis == "hypothesis"
    high = diagnose(lab.with_rows(drafting(0.8, 0.030)), "tail-latency", argv=())
    assert outcome(high, "tail.spec-reject") == "pass"


@pytest.mark.parametrize(("seconds", "expected"), [(0.030, "fail"), (0.012, "pass")])
def test_a_baseline_says_whether_drafting_loses(lab: Any, seconds: float, expected: str) -> None:
    # 20 % of 4 drafts: 1.8 tokens a step; a token takes `seconds` here and 20 ms without drafts
    before = lab.with_rows(drafting(0.0, 0.020, drafts=False))
    found = diagnose(lab.with_rows(drafting(0.2, seconds)), "tail-latency", baseline=before, argv=())
    assert outcome(found, "tail.spec-reject") == expected, said(found)


# -- operator-slower --------------------------------------------------------------------------------------------------------------------


def operators(**factors: float) -> dict[str, list[dict[str, Any]]]:
    times = {"aten::mm": 40.0, "aten::addmm": 30.0, "aten::index_select": 10.0, "aten::softmax": 10.0, "gloo:all_to_all": 60.0}
    rows = []
    for rank in range(2):
        for name, ms in times.items():
            taken = int(ms * factors.get(name.split("::")[-1].split(":")[-1], factors.get("all", 1.0)) * MS)
            rows.append({"ts": T0, "rank": rank, "step_first": 10, "step_last": 29, "tokens": 400, "name": name, "calls": 80,
                         "self_cpu": taken, "total_cpu": taken, "self_device": None})  # fmt: skip
    return {"operator": rows}


@pytest.mark.parametrize(("factors", "expected"), [({"softmax": 2.5}, "aten::softmax"), ({"all": 1.6}, None), ({"all_to_all": 3.0}, None)])
def test_the_operator_that_got_slower(lab: Any, factors: dict[str, float], expected: str | None) -> None:
    baseline = lab.with_rows(operators())
    found = diagnose(lab.with_rows(operators(**factors)), "tail-latency", baseline=baseline, argv=())
    named = [one.subject.id for one in found.findings if one.id == "tail.operator-slower"]
    assert named == ([expected] if expected else []), said(found)


def test_operators_need_a_baseline_with_a_profile(lab: Any) -> None:
    run = lab.with_rows(operators())
    assert outcome(diagnose(run, "tail-latency", argv=()), "tail.operator-slower") == "not_applicable"
    assert outcome(diagnose(run, "tail-latency", baseline=lab.with_rows({}), argv=()), "tail.operator-slower") == "skipped"

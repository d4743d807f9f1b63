import gc

from probes.gc_pauses import GcPauses
from traces import schema


class Node:
    def __init__(self) -> None:
        self.me = self


def test_a_collection_is_recorded_with_what_it_collected(rows):
    gc.collect()
    with GcPauses(rows, rank=2, interval=60, least_ns=0):
        cycles = [Node() for _ in range(400)]
        del cycles
        collected = gc.collect()
    full = [event for event in rows.of(schema.EVENT) if event["attrs"].get("generation") == 2]
    assert any(event["attrs"]["collected"] == collected >= 400 for event in full)
    assert all(event["kind"] == "gc" and event["rank"] == 2 and event["dur"] > 0 for event in full)


def test_short_ones_are_summed_not_lost(rows):
    with GcPauses(rows, interval=60, least_ns=10**12) as pauses:
        pauses.sample()
        for _ in range(7):
            gc.collect(0)
        pauses.sample()
    short = [event for event in rows.of(schema.EVENT) if event["kind"] == "gc_short"]
    assert sum(event["attrs"]["pauses"] for event in short) >= 7
    assert all(event["dur"] > 0 for event in short)
    assert not [event for event in rows.of(schema.EVENT) if event["kind"] == "gc"]


def test_nothing_stays_behind_after_stop(rows):
    before = len(gc.callbacks)
    pauses = GcPauses(rows).start()
    pauses.stop()
    pauses.stop()
    assert len(gc.callbacks) == before

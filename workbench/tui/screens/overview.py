"""Screen 1: is it serving, how fast, and is one rank different from the others?"""

from __future__ import annotations

from typing import ClassVar

from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, Vertical
from textual.content import Content
from textual.widgets import DataTable, Static

from workbench.tui import numbers, palette
from workbench.tui.data import overview
from workbench.tui.data.overview import Event, Latency, Overview, RankRow
from workbench.tui.data.windows import SECOND
from workbench.tui.feed import Reads
from workbench.tui.screens.base import DataScreen
from workbench.tui.widgets.gauge import gauge
from workbench.tui.widgets.sparkbars import SparkBars
from workbench.tui.widgets.table import Column, sync

WINDOWS: tuple[tuple[int | None, str], ...] = ((60_000_000_000, "60 s"), (600_000_000_000, "10 min"), (None, "all"))
_NAMES = ("rank", "step ms", "worst", "sync wait ms", "tok/s", "run", "wait", "  KV in use", "memory")
_GAUGES = {True: 6, False: 12}  # columns of the KV gauge, narrow and not


def _columns(narrow: bool) -> tuple[Column, ...]:
    widths = (4, 8, 8, 13, 7, 4, 5, _GAUGES[narrow] + 8, 10) if narrow else (4, 10, 10, 16, 9, 6, 7, _GAUGES[narrow] + 8, 12)
    return tuple(Column(name, width, left=name.startswith("  ")) for name, width in zip(_NAMES, widths, strict=True))


class OverviewScreen(DataScreen[Overview]):
    """Throughput and latencies on top, one row a rank, the last events below."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("w", "window", "Window")]

    def __init__(self) -> None:
        super().__init__()
        self._window = 0

    def body(self) -> ComposeResult:
        with Horizontal(id="summary"):
            with Vertical(id="rates", classes="panel"):
                yield SparkBars("prefill tokens/s", palette.PREFILL, id="prefill")
                yield SparkBars("decode tokens/s", palette.DECODE, id="decode")
                yield Static(id="queue")
            with Vertical(id="latencies", classes="panel"):
                yield Static("reading …", id="latency")
        with Vertical(id="ranks", classes="panel"):
            yield DataTable(id="rank-table", cursor_type="row", cell_padding=0)
        with Vertical(id="events", classes="panel"):
            yield Static(id="event-list")

    def on_mount(self) -> None:
        self.query_one("#rates").border_title = "throughput"
        self.query_one("#latencies").border_title = "requests"
        self.query_one("#ranks").border_title = "ranks"
        self.query_one("#events").border_title = "events"
        self.query_one("#rank-table").focus()

    def ask(self, store: Reads) -> Overview:
        return overview.read(store, WINDOWS[self._window][0], self.workbench.clock())

    def show(self, value: Overview) -> None:
        self.workbench.dropped(value.dropped)
        bars = f" · a bar is {numbers.span(value.bar)}" if value.bar > SECOND else ""
        self.query_one("#rates").border_subtitle = value.span.words + bars
        self.query_one("#prefill", SparkBars).show(value.prefill, value.prefill_rate)
        self.query_one("#decode", SparkBars).show(value.decode, value.decode_rate)
        self.query_one("#queue", Static).update(_queue(value))
        self.query_one("#latency", Static).update(_latencies(value.latencies))
        narrow = self.size.width < 100
        rows = {str(row.rank): _cells(row, value, _GAUGES[narrow]) for row in value.ranks}
        sync(self.query_one("#rank-table", DataTable), _columns(narrow), rows)
        self.query_one("#event-list", Static).update(_events(value.events, value.span.end))

    def action_window(self) -> None:
        """60 s, 10 min, the whole run."""
        self._window = (self._window + 1) % len(WINDOWS)
        self.reload()


def _queue(value: Overview) -> Content:
    color = "$warning" if value.waiting else "$muted"
    return Content.assemble(
        ("running ", "$muted"), (f"{value.running}", "bold"), ("   waiting ", "$muted"), (f"{value.waiting}", f"bold {color}"),
    )  # fmt: skip


def _latencies(rows: tuple[Latency, ...]) -> Content:
    """A small table; quantiles of few requests stay unsaid."""
    lines = [Content.styled(f"{'':<11}{'p50':>9}{'p90':>9}{'worst':>9}{'n':>6}", "$muted"), *map(_latency, rows)]
    if any(row.n and row.p90 is None for row in rows):
        lines.append(Content.styled(f"no p90 below {overview.FEWEST} requests", "$muted italic"))
    return Content("\n").join(lines)


def _latency(row: Latency) -> Content:
    p50, p90, worst = (numbers.duration(value) for value in (row.p50, row.p90, row.worst))
    name, n = (f"{row.name:<11}", "$muted"), (f"{row.n:>6}", "$muted")
    return Content.assemble(name, (f"{p50:>9}", "bold"), f"{p90:>9}{worst:>9}", n)


def _cells(row: RankRow, value: Overview, room: int) -> tuple[Text, ...]:
    worst = max((r.step_p50 or 0) for r in value.ranks)
    slow = len(value.ranks) > 1 and row.step_p50 is not None and row.step_p50 == worst and worst > 1.15 * _median(value)
    wait = row.sync / row.step_p50 if row.sync is not None and row.step_p50 else None
    memory = row.device_memory if row.device_memory is not None else row.memory
    kv = Text("  ").append_text(gauge(row.kv_used, row.kv_total, room))
    return (
        Text(f"{row.rank}"), Text(numbers.milliseconds(row.step_p50), style="bold" if slow else ""),
        Text(numbers.milliseconds(row.step_max)), Text(f"{numbers.milliseconds(row.sync)} {numbers.percent(wait):>5}"),
        Text(numbers.count(row.busy_tokens / (value.span.length / SECOND))), Text(str(row.running)), Text(str(row.waiting)), kv,
        Text(numbers.size(memory)),
    )  # fmt: skip


def _median(value: Overview) -> float:
    steps = sorted(row.step_p50 or 0 for row in value.ranks)
    return steps[len(steps) // 2]


def _events(events: tuple[Event, ...], end: int) -> Content:
    if not events:
        return Content.styled("nothing happened yet", "$muted")
    return Content("\n").join(_event(event, end) for event in events)


def _event(event: Event, end: int) -> Content:
    rank = ranks_of(event.ranks)
    took = numbers.duration(event.dur) if event.dur else ""
    ago = f"{numbers.span(max(end - event.ts, 0))} ago"
    return Content.assemble(
        (f"{ago:>12}  ", "$muted"), (f"{event.kind:<12}", "$accent"), f"{rank:<11}{took:>9}  ", (event.detail, "$muted")
    )


def ranks_of(ranks: tuple[int, ...]) -> str:
    """rank 2 · ranks 0-3 · ranks 0,2 · 5 ranks."""
    if len(ranks) < 2:
        return f"rank {ranks[0]}" if ranks else ""
    if ranks == tuple(range(ranks[0], ranks[-1] + 1)):
        return f"ranks {ranks[0]}-{ranks[-1]}"
    words = f"ranks {','.join(map(str, ranks))}"
    return words if len(words) <= 11 else f"{len(ranks)} ranks"

"""Before, during, after: the comparison as rows, with no claim where the numbers do not decide."""

from __future__ import annotations

from playbooks.attribution.bootstrap import Interval
from workbench.demo.document import Change, Comparison
from workbench.demo.measure import Phase

UNDETERMINED: Change = "undetermined"


def compare(before: Phase, during: Phase, after: Phase) -> tuple[Comparison, ...]:
    phases = (before, during, after)
    return (
        _line("imbalance", "rows of the busiest rank / mean rank", [p.imbalance for p in phases], "", 2),
        _line("expert_ms", "expert CPU per 1,000 rows, ms", [p.expert_ms for p in phases], "", 2),
        _line("p50", "answer, median, ms", [p.p50 for p in phases], "", 0),
        _line("p99", "answer, 99th percentile, ms", [p.p99 for p in phases], "too few requests", 0),
        _exact(phases),
    )


def _line(metric: str, text: str, values: list[Interval | None], absent: str, digits: int) -> Comparison:
    before, during, after = (show(value, absent, digits) for value in values)
    return Comparison(metric=metric, text=text, before=before, during=during, after=after, verdict=verdict(values[1], values[2]))


def _exact(phases: tuple[Phase, Phase, Phase]) -> Comparison:
    cells = ["not asked" if p.exact is None else f"{p.exact:.0%}" for p in phases]
    same: Change = "equal" if len(set(cells)) == 1 else UNDETERMINED
    return Comparison(metric="exact", text="answers that are exactly right", before=cells[0], during=cells[1], after=cells[2], verdict=same)


def show(value: Interval | None, absent: str, digits: int) -> str:
    """`1.82 [1.79, 1.86]`"""
    return absent if value is None else f"{value.value:.{digits}f} [{value.low:.{digits}f}, {value.high:.{digits}f}]"


def verdict(first: Interval | None, second: Interval | None) -> Change:
    """How the second compares with the first: decided only where the intervals do not overlap."""
    if first is None or second is None:
        return UNDETERMINED
    if second.high < first.low:
        return "lower"
    return "higher" if second.low > first.high else UNDETERMINED

"""The causes of slow-load, cheapest question first."""

from __future__ import annotations

from playbooks.check import Check
from playbooks.slow_load import after_reads, download, every_rank_reads_all, page_faults, read_errors, single_thread, warm_up

CHECKS: tuple[Check, ...] = (
    read_errors.CHECK,
    download.CHECK,
    every_rank_reads_all.CHECK,
    page_faults.CHECK,
    single_thread.CHECK,
    after_reads.CHECK,
    warm_up.CHECK,
)

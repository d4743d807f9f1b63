"""`python -m playbooks.drills.burn`: computes until it is killed, or until the process that started it is gone."""

from __future__ import annotations

import os

from runtime.child import PARENT, die_with_parent, name_process


def main() -> None:
    die_with_parent(int(os.environ[PARENT]))
    name_process("drill-burn")
    while True:
        sum(range(10_000))


if __name__ == "__main__":
    main()

"""A producer under load, run as a process of its own: writes tokens numbered from 0 and says on stdout what was acknowledged.

    python load_producer.py RUN NAME [LIMIT]   "acked N": rows below N are acknowledged; "wrote N": rows below N were recorded
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

from traces.producer import Recorder
from traces.run import Run
from traces.schema import TOKEN

BATCH = 400


def main(path: str, name: str, limit: str = "100000000") -> None:
    rank = int(name.removeprefix("rank"))
    with Recorder.open(Run(Path(path)), name, interval=0.05) as recorder:
        recorder.register("rank", rank=rank)
        write = recorder.writer(TOKEN)
        written = 0
        while written < int(limit):
            for index in range(written, written + BATCH):
                write(index, f"{rank:032x}", index, index // 8, rank)
            written += BATCH
            print("wrote", written, flush=True)
            if recorder.flush(0.5):
                print("acked", written, flush=True)
            time.sleep(0.02)
        while not recorder.flush(1.0):
            pass
        print("acked", written, flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])

"""Text while pictures arrive in a burst: how late is its first token where pictures have a budget of their own, and where they have none?

`python tests/benchmarks/isolation_bench.py [--rounds 4] [--images 50] [--rate 10] [--ranks 1] [--side 640] [--threads N]` serves the
shipped model twice, once as it is and once with `image_patches_per_step = 0`, its pictures allowed to be `side` x `side` pixels. The two
take turns (with, without, without, with, ...): while text requests arrive at `rate` a second, whether or not earlier ones are answered,
`images` pictures that nobody has seen come at once. What is judged are the text requests sent between the first picture and the answer to
the last one.

Prints for each server the p50 and p99 of the time to the first token of text (seconds, seen by the client), how long a burst took, and
the highest resident bytes; then the ratios with / without and their 95 % intervals: 2000 resamples of pairs of rounds and, in each, of
requests. Below 1, and with an interval below 1, the budget protects text.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import io
import json
import shutil
import sys
import tempfile
import time
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import numpy as np
from numpy.typing import NDArray
from PIL import Image

from runtime.control_client import ControlClient
from runtime.launcher import ServerProcess, start_server
from runtime.serve_config import ServeConfig
from runtime.shipped import shapes_moe
from traces.store import open_run

QUESTIONS = ("Hello!", "What is 2 + 3?", "Count from one to nine.", "Say something about a robot.", "What is the opposite of hot?")
LEAD = 1.0  # seconds of text alone before the pictures
RESAMPLES = 2000
MEMORY = "SELECT phase, max(rss_anon) AS anonymous, max(hwm) AS high_water FROM memory WHERE rank IS NOT NULL GROUP BY phase"


@dataclass(frozen=True)
class Round:
    """`text`: seconds to the first token of every text request sent while pictures were inside. `burst`: seconds until all had answers."""

    text: NDArray[np.float64]
    image: NDArray[np.float64]  # the same of the pictures
    burst: float


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=4, help="of each server")
    parser.add_argument("--images", type=int, default=50)
    parser.add_argument("--rate", type=float, default=10.0, help="text requests a second")
    parser.add_argument("--ranks", type=int, default=1)
    parser.add_argument("--side", type=int, default=640, help="pixels of a side after preprocessing")
    parser.add_argument("--seed", type=int, default=0)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="workbench-isolation-") as folder, ExitStack() as stack:
        model = large_pictures(Path(folder), asked.side)
        plain = ServeConfig(model=str(model), ep=asked.ranks, port=0, run_root=folder, max_queue=4096)
        without = ServeConfig(model=str(model), ep=asked.ranks, port=0, run_root=folder, max_queue=4096, image_patches_per_step=0)
        servers = {name: stack.enter_context(start_server(config)) for name, config in (("with", plain), ("without", without))}
        rounds: dict[str, list[Round]] = {name: [] for name in servers}
        for turn in range(-1, asked.rounds):  # the first only warms both up
            for name in list(servers) if turn % 2 == 0 else list(servers)[::-1]:
                count = asked.images if turn >= 0 else 4
                made = asyncio.run(one_round(servers[name].url, model.name, count, asked.rate, (asked.seed, turn)))
                if turn >= 0:
                    rounds[name].append(made)
                    print(name, json.dumps(summary([made])), file=sys.stderr, flush=True)
                settle(servers[name])
        stack.pop_all().close()
        found: dict[str, Any] = {name: {**summary(made), "memory": memory(servers[name])} for name, made in rounds.items()}
    for name, share in (("p50", 50), ("p99", 99)):
        found[f"ratio_{name}"] = ratio(rounds["with"], rounds["without"], share, asked.seed)
    found["budget_helps"] = found["ratio_p99"]["high"] < 1
    print(json.dumps(found, indent=1))
    return 0 if found["budget_helps"] else 1


def large_pictures(folder: Path, side: int) -> Path:
    """The shipped model, with pictures of up to side x side pixels."""
    model = Path(shutil.copytree(shapes_moe(), folder / "shapes-moe"))
    file = model / "preprocessor_config.json"
    file.write_text(json.dumps({**json.loads(file.read_bytes()), "size": {"shortest_edge": 8192, "longest_edge": side * side}}))
    return model


async def one_round(url: str, model: str, images: int, rate: float, seed: tuple[int, int]) -> Round:
    rng = np.random.default_rng([seed[0], seed[1] + 1])
    pictures = [picture(rng) for _ in range(images)]
    limits = httpx.Limits(max_connections=None)
    async with httpx.AsyncClient(base_url=url, timeout=600, limits=limits, trust_env=False) as client:
        done = asyncio.Event()
        texts = asyncio.ensure_future(text_stream(client, model, rate, rng, done))
        await asyncio.sleep(LEAD)
        begin = time.perf_counter()
        image = await asyncio.gather(*(first_token(client, model, content(one)) for one in pictures))
        end = time.perf_counter()
        done.set()
        sent = await texts
    inside = [seconds for at, seconds in sent if begin <= at <= end]
    return Round(np.array(inside), np.array(image), end - begin)


async def text_stream(
    client: httpx.AsyncClient, model: str, rate: float, rng: np.random.Generator, done: asyncio.Event
) -> list[tuple[float, float]]:
    """(when it was due, seconds from then to its first token) of requests at fixed times, whatever became of those before."""
    asked: list[tuple[float, asyncio.Future[float]]] = []
    due = time.perf_counter()
    while not done.is_set():
        await asyncio.sleep(max(0.0, due - time.perf_counter()))
        words = f"{QUESTIONS[rng.integers(len(QUESTIONS))]} {rng.integers(10_000)}"
        asked.append((due, asyncio.ensure_future(first_token(client, model, words, due))))
        due += 1 / rate
    return [(at, await seconds) for at, seconds in asked]


async def first_token(client: httpx.AsyncClient, model: str, words: Any, since: float | None = None) -> float:
    """Seconds until the first words of an answer of four tokens; httpx.HTTPError when there is none."""
    begin = time.perf_counter() if since is None else since
    body = {"model": model, "messages": [{"role": "user", "content": words}], "max_tokens": 4, "ignore_eos": True, "stream": True}
    first = 0.0
    async with client.stream("POST", "/v1/chat/completions", json=body) as response:
        response.raise_for_status()
        async for line in response.aiter_lines():
            if first or not line.startswith("data: {"):
                continue
            choice = json.loads(line[6:])["choices"][0]
            if choice["delta"].get("content") or choice["finish_reason"]:  # the very first event only names the role
                first = time.perf_counter() - begin
    if not first:
        raise httpx.ReadError("an answer without a token")
    return first


def picture(rng: np.random.Generator) -> str:
    """1200 x 900 pixels as a JPEG file in a data URI: a coarse pattern enlarged, so that it is unlike any other."""
    coarse = Image.fromarray(rng.integers(0, 256, (18, 24, 3), dtype=np.uint8))
    buffer = io.BytesIO()
    coarse.resize((1200, 900), Image.Resampling.BICUBIC).save(buffer, "JPEG", quality=90)
    return "data:image/jpeg;base64," + base64.b64encode(buffer.getvalue()).decode()


def content(uri: str) -> list[dict[str, Any]]:
    return [{"type": "image_url", "image_url": {"url": uri}}, {"type": "text", "text": "What is in the picture?"}]


def settle(server: ServerProcess) -> None:
    """Until nothing is inside, so that the other server has the machine for itself."""
    with ControlClient.for_run(server.run) as control:
        while control.state()["requests"]:
            time.sleep(0.05)


def summary(rounds: list[Round]) -> dict[str, Any]:
    text, image = (np.concatenate([getattr(one, name) for one in rounds]) for name in ("text", "image"))
    return {
        "text_requests": len(text),
        "text_p50_s": round(float(np.percentile(text, 50)), 4),
        "text_p99_s": round(float(np.percentile(text, 99)), 4),
        "image_p50_s": round(float(np.percentile(image, 50)), 4),
        "burst_s": [round(one.burst, 2) for one in rounds],
    }


def ratio(with_: list[Round], without: list[Round], share: int, seed: int) -> dict[str, float]:
    """Of the percentile over all requests. Pairs of rounds are drawn with replacement, and requests within each."""
    rng = np.random.default_rng(seed)

    def of(numbers: list[int], draw: bool) -> float:
        pooled = []
        for rounds in (with_, without):
            texts = [rounds[number].text for number in numbers]
            pooled.append(np.concatenate([rng.choice(text, len(text)) if draw else text for text in texts]))
        return float(np.percentile(pooled[0], share) / np.percentile(pooled[1], share))

    count = len(with_)
    drawn = [of(rng.integers(count, size=count).tolist(), True) for _ in range(RESAMPLES)]
    low, high = np.percentile(drawn, [2.5, 97.5])
    return {"ratio": round(of(list(range(count)), False), 4), "low": round(float(low), 4), "high": round(float(high), 4)}


def memory(server: ServerProcess) -> dict[str, Any]:
    """Highest anonymous and high-water bytes of a rank, by phase; of the closed run."""
    with open_run(server.run) as store:
        return {row["phase"]: {"anonymous": row["anonymous"], "high_water": row["high_water"]} for row in store.rows(MEMORY)}


if __name__ == "__main__":
    sys.exit(main())

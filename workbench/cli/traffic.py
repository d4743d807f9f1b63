"""`workbench traffic`: sends a described mix of requests and records the client's side."""

from __future__ import annotations

from typing import Any

import click

from workbench.cli.context import Command, complete_run, finish, json_option
from workbench.cli.output import answer, answer_json

BAD_ANSWER = 3


@click.command(
    cls=Command,
    epilog="""\b
Examples:
  workbench traffic http://127.0.0.1:8000 --concurrency 8 --requests 200
  workbench traffic http://127.0.0.1:8000 --rate 4 --duration 60 --mix prefill-heavy
""",
)
@click.argument("url")
@click.option("--mix", default="shapes", show_default=True, help="shapes, prefill-heavy or text.")
@click.option("--rate", type=float, help="Requests a second, Poisson arrivals (an open loop).")
@click.option("--concurrency", type=int, help="Requests in flight (a closed loop); 4 unless --rate is given.")
@click.option("--requests", type=int, help="Stop after so many; 100 unless --duration is given.")
@click.option("--duration", type=float, help="Start requests for so many seconds.")
@click.option("--image-share", type=float, default=0.5, show_default=True, help="Share of requests with a picture, 0 to 1.")
@click.option("--turns", type=int, default=16, show_default=True, help="Turns of a conversation in the prefill-heavy mix.")
@click.option("--replica", type=int, help="Data-parallel replica to ask for, by X-Data-Parallel-Rank (ours, vLLM).")
@click.option("--max-tokens", type=int, help="Tokens an answer may have; the mix's own number otherwise.")
@click.option("--reuse", is_flag=True, help="Let the server's prefix cache find prompts that it has seen; else each is computed in full.")
@click.option("--seed", type=int, default=0, show_default=True, help="The same seed sends the same prompts in the same order.")
@click.option("--phase", default="", help="A label by which readers find these requests.")
@click.option("--timeout", type=float, default=60.0, show_default=True, help="Seconds for one request.")
@click.option("--model", help="Model to ask; the first one the server lists otherwise.")
@click.option("--api-key", envvar="OPENAI_API_KEY", help="Key of the server, where it wants one.")
@click.option(
    "--run", "run_name", metavar="RUN", shell_complete=complete_run, help="Run to record into; the live run that serves URL otherwise."
)
@json_option()
def traffic(url: str, run_name: str | None, as_json: bool, **plan: Any) -> None:
    """Send a described mix of text and picture requests to any OpenAI-compatible URL, and measure the client's side.

    Ctrl-C ends it early and keeps what was measured. Exit code 3 if no request succeeded.
    """
    from workbench.cli.sending import send, summary_table

    if plan["rate"] is None and plan["concurrency"] is None:
        plan["concurrency"] = 4
    if plan["requests"] is None and plan["duration"] is None:
        plan["requests"] = 100
    sent = send(url, run_name, plan)
    if as_json:
        answer_json(sent.document())
    else:
        answer(summary_table(sent))
    if sent.ended == "cancelled":
        raise KeyboardInterrupt
    finish(0 if sent.summary.ok else BAD_ANSWER)

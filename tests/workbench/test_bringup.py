"""The ladder without a server of ours: what stops it, what it says, what it keeps; and an engine that was started elsewhere."""

from __future__ import annotations

import base64
import io
import json
import shutil
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from PIL import Image

from probes.checkpoint import Checkpoint
from probes.doctor import examine
from probes.fingerprint import fingerprint
from runtime.serve_config import ServeConfig
from runtime.shipped import shapes_moe
from traces.errors import UsageError
from workbench.bringup.agreement import parting
from workbench.bringup.document import BringupDocument, Step
from workbench.bringup.ladder import LADDER, climb
from workbench.bringup.record import Record, kept
from workbench.bringup.rung import Outcome, Rung, failed, passed, skipped
from workbench.bringup.rungs import environment
from workbench.bringup.rungs.serial import Alone
from workbench.bringup.rungs.single_step import _prompts
from workbench.bringup.site import Options, Site
from workbench.cli.bringup_options import SETTINGS, options_of

BY_NAME = {rung.name: rung for rung in LADDER}


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A copy of the shipped model, to be damaged."""
    return Path(shutil.copytree(shapes_moe(), tmp_path / "shapes-moe"))


def climbed(model: Path, folder: Path, *names: str, rungs: tuple[Rung, ...] = (), **options: Any) -> BringupDocument:
    """A call of the ladder, or of some of its rungs."""
    config = options.pop("config", None) or ServeConfig(model=str(model), ep=2, device="cpu")
    site = Site(model, Options(config=config, **options), folder)
    return climb(site, Record(folder), rungs or tuple(BY_NAME[name] for name in names))


def test_the_order_is_that_of_a_first_day() -> None:
    assert [rung.name for rung in LADDER] == [
        "environment", "operators", "weights", "plan", "one device", "one host", "two hosts", "all hosts",
        "serial request", "batch", "long", "image",
    ]  # fmt: skip


def test_damaged_weights_stop_it_and_it_resumes_there(model: Path, tmp_path: Path) -> None:
    checkpoint = Checkpoint.open(model)
    name = "model.language_model.layers.2.mlp.gate.weight"
    entry = checkpoint.tensors[name]
    file = model / entry.file
    whole = file.read_bytes()
    broken = bytearray(whole)
    broken[entry.offset : entry.offset + 2] = b"\x80\x7f"  # infinity in bfloat16
    file.write_bytes(broken)
    stopped = climbed(model, tmp_path / "record", "weights", "plan")
    assert (stopped.status, stopped.stopped_at, stopped.variable) == ("fail", "weights", "the files of the checkpoint")
    assert any(one.name == "non-finite" and name in one.observed for one in stopped.steps[0].evidence)
    assert f"workbench verify {model} --deep" in stopped.steps[0].next
    assert stopped.steps[1].status == "not reached"
    file.write_bytes(whole)
    up = climbed(model, tmp_path / "record", "weights", "plan")
    assert [(step.status, step.kept) for step in up.steps] == [("pass", False), ("pass", False)]


def test_an_environment_unlike_the_baseline_stops_it_until_it_is_accepted(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(environment, "examine", lambda runs, deep: examine(runs))  # torch in a child takes seconds
    baseline = fingerprint(model=model)
    baseline["packages"] = {**baseline["packages"], "numpy": "1.0.0"}
    elsewhere: dict[str, Any] = {"baseline": baseline}
    stopped = climbed(model, tmp_path / "record", "environment", **elsewhere)
    assert stopped.stopped_at == "environment"
    assert "packages.numpy" in stopped.steps[0].summary
    assert any(one.name == "packages.numpy" and one.expected == "1.0.0" for one in stopped.steps[0].evidence)
    empty = climbed(model, tmp_path / "record", "environment", **{**elsewhere, "baseline": {"schema": "workbench.fingerprint.v1"}})
    assert empty.stopped_at == "environment"  # nothing to compare with is not equal
    assert climbed(model, tmp_path / "record", "environment", **elsewhere, accepted=("packages.num*",)).status == "pass"


def test_of_an_engine_started_elsewhere_only_the_host_is_compared(model: Path, tmp_path: Path) -> None:
    baseline = fingerprint(model=model)
    baseline.update(packages={"numpy": "1.0.0"}, python={"version": "2.7"}, env={"NCCL_DEBUG": "INFO"}, limits={"nofile": 7})
    elsewhere: dict[str, Any] = {"endpoint": "http://127.0.0.1:9", "baseline": baseline}
    up = climbed(model, tmp_path / "record", "environment", **elsewhere)
    assert up.status == "pass"
    assert any(one.name == "not seen" and "workbench fingerprint" in one.observed for one in up.steps[0].evidence)
    baseline["os"] = {**baseline["os"], "kernel": "2.4.0"}
    assert "os.kernel" in climbed(model, tmp_path / "record", "environment", **elsewhere).steps[0].summary


def test_a_model_that_asks_for_more_than_there_is_stops_at_its_operators(model: Path, tmp_path: Path) -> None:
    path = model / "config.json"
    config = json.loads(path.read_text())
    path.write_text(json.dumps({**config, "text_config": {**config["text_config"], "hidden_act": "gelu_of_tomorrow"}}))
    stopped = climbed(model, tmp_path / "record", "operators")
    assert stopped.stopped_at == "operators"
    assert "gelu_of_tomorrow" in stopped.steps[0].summary


def test_a_device_on_which_nothing_could_be_executed_stops_it(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("runtime.operators.execute.device_fault", lambda device: "no driver")
    stopped = climbed(model, tmp_path / "record", "operators")
    assert stopped.stopped_at == "operators" and "no operator could be executed" in stopped.steps[0].summary
    assert any("no driver" in one.observed for one in stopped.steps[0].evidence)


def test_prompts_fit_the_sequences_that_are_asked_for(model: Path, tmp_path: Path) -> None:
    loaded = SimpleNamespace(arch=SimpleNamespace(vocab=1000, max_positions=4096))

    def lengths(longest: int) -> list[int]:
        config = ServeConfig(model=str(model), ep=2, device="cpu", max_model_len=longest)
        return [len(ids) for ids in _prompts(Site(model, Options(config=config), tmp_path), loaded)]

    assert [lengths(longest) for longest in (16, 24, 27)] == [[], [], [3, 3, 3, 3]]
    assert lengths(1000)[-1] == 700


def test_a_short_context_leaves_no_answers_and_says_so(model: Path, tmp_path: Path) -> None:
    config = ServeConfig(model=str(model), ep=2, device="cpu", max_model_len=24)
    up = climbed(model, tmp_path / "record", "one device", config=config)
    assert up.status == "pass"
    assert "no answers are kept for the layout" in up.steps[0].summary
    assert not (tmp_path / "record" / "single_device.json").exists()


def test_a_device_that_is_too_small_stops_it_on_paper(model: Path, tmp_path: Path) -> None:
    stopped = climbed(model, tmp_path / "record", "plan", device_memory=4 << 20)
    assert stopped.stopped_at == "plan"
    assert any("diagnose oom-on-load" in command for command in stopped.steps[0].next)
    assert climbed(model, tmp_path / "record", "plan", device_memory=64 << 20).status == "pass"


def test_the_layout_of_an_engine_is_not_invented(model: Path, tmp_path: Path) -> None:
    unset = dict.fromkeys((*SETTINGS, "config_file", "baseline", "context", "served_name"))
    given = {**unset, "accepted": (), "concurrency": 8, "headers_only": True, "start_seconds": 9, "device_memory": "64MiB"}

    def planned(**flags: Any) -> Step:
        site = Site(model, options_of(str(model), {**given, "endpoint": "http://127.0.0.1:9", **flags}), tmp_path / "record")
        return climb(site, Record(site.folder), (BY_NAME["plan"],)).steps[0]

    assert (planned(ep=2).status, planned(ep=2).kept) == ("pass", True)
    assert (planned().status, planned().summary) == ("skipped", "the engine's layout is not known: give --tp, --pp, --dp")


def test_what_a_result_depends_on_decides_whether_it_is_kept(model: Path, tmp_path: Path) -> None:
    climbs: list[str] = []

    def rung(name: str, depends: tuple[str, ...], outcome: Outcome, **kind: bool) -> Rung:
        def climb_it(_: Site) -> Outcome:
            climbs.append(name)
            return outcome

        return Rung(name, "something", depends, climb_it, **kind)

    def call(last: Outcome) -> list[str]:
        climbs.clear()
        rungs = (
            rung("files", ("weights",), passed("")),
            rung("small files", ("config",), passed("")),
            rung("server", ("config",), passed(""), serves=True),
            rung("hosts", ("config",), skipped("no other host")),
            rung("question", ("config",), last, asks=True),
        )
        climbed(model, tmp_path / "record", rungs=rungs)
        return list(climbs)

    assert call(failed("")) == ["files", "small files", "server", "hosts", "question"]
    assert call(failed("")) == ["server", "hosts", "question"]  # the server of the last call is gone
    assert call(passed("")) == ["server", "hosts", "question"]
    assert call(passed("")) == ["hosts"]
    (model / "generation_config.json").write_text('{"eos_token_id": 998}')
    assert call(passed("")) == ["small files", "server", "hosts", "question"]


def test_an_interrupted_call_is_unfinished_and_forgets_no_pass(model: Path, tmp_path: Path) -> None:
    climbs: list[str] = []

    def rung(name: str, ends: Outcome | type[BaseException], **kind: bool) -> Rung:
        def climb_it(_: Site) -> Outcome:
            climbs.append(name)
            if isinstance(ends, Outcome):
                return ends
            raise ends

        return Rung(name, "something", (), climb_it, **kind)

    def call(server: Outcome | type[BaseException], last: Outcome | type[BaseException]) -> BringupDocument:
        climbs.clear()
        rungs = (
            rung("files", passed("")),
            rung("server", server, serves=True),
            rung("first", passed(""), asks=True),
            rung("last", last, asks=True),
        )
        return climbed(model, tmp_path / "record", rungs=rungs)

    for server, expected in ((passed(""), ["files", "server", "first", "last"]), (KeyboardInterrupt, ["server"])):
        with pytest.raises(KeyboardInterrupt):
            call(server, KeyboardInterrupt)
        assert climbs == expected
        left = msgspec.json.decode((tmp_path / "record" / "bringup.json").read_bytes(), type=BringupDocument)
        assert (left.status, left.stopped_at) == ("unfinished", None)
        assert [step.status for step in left.steps] == ["pass", "pass", "pass", "not reached"]
        assert "Not finished: the call was interrupted." in (tmp_path / "record" / "manual.md").read_text()
    stopped = call(failed("it does not start"), passed(""))
    assert [step.status for step in stopped.steps] == ["pass", "fail", "not reached", "not reached"]


def test_answers_agree_up_to_a_near_tie() -> None:
    assert parting("abc", "abc", [1, 1, 1]) is None
    apart = parting("abcd", "abxd", [5.0, 5.0, 0.0005, 5.0])
    assert apart is not None
    assert (apart.at, apart.near_tie(True)) == (2, True)
    clear = parting("abc", "abx", [5.0, 5.0, 0.1])
    assert clear is not None
    assert (clear.near_tie(True), clear.near_tie(False)) == (False, True)  # 0.1: an error in float32, rounding in bfloat16
    unknown = parting("ab", "a", [])
    assert unknown is not None
    assert unknown.near_tie(True) is None


def test_the_manual_is_text_whatever_a_model_answers(model: Path, tmp_path: Path) -> None:
    hostile = Rung("first", "a | b", (), lambda _: failed("<script>|`\nnext line"))
    climbed(model, tmp_path / "record", rungs=(hostile,))
    text = (tmp_path / "record" / "manual.md").read_text()
    assert "Stopped at **first**" in text
    assert "<script>" not in text
    assert "&lt;script>\\|' next line" in text


class Engine(ThreadingHTTPServer):
    """An engine of nobody's: it answers with the words of the question, and knows the colour of a picture. `mixes`: whatever is asked
    while something else is being answered gets the other's words, as with a batch whose rows are confused. `tells` is given the question
    and the document that answers it, and returns what is said in its place; None: the question is refused."""

    mixes = False
    tells: Callable[[Any, Any], Any] = staticmethod(lambda asked, document: document)

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.lock, self.inside, self.crowd = threading.Lock(), 0, threading.Event()
        self.url = f"http://127.0.0.1:{self.server_address[1]}"


class _Handler(BaseHTTPRequestHandler):
    server: Engine
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True  # else every answer waits 40 ms

    def do_GET(self) -> None:
        self._say(None, {"object": "list", "data": [{"id": "foreign", "max_model_len": 400}]})

    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["content-length"])))
        engine = self.server
        with engine.lock:
            engine.inside += 1
            if engine.inside > 1:
                engine.crowd.set()
        if engine.mixes:
            engine.crowd.wait(0.05)  # a batch is collected, as engines do
        words, taken = _answer(asked["messages"][0]["content"])
        with engine.lock:
            if engine.mixes and engine.crowd.is_set():
                words = ["somebody", "else"]
            engine.inside -= 1
            if not engine.inside:
                engine.crowd.clear()
        words = words[: asked["max_tokens"]]
        other = {"token": "?", "logprob": -3.0}
        told = [{"token": w, "logprob": -0.1, "top_logprobs": [{"token": w, "logprob": -0.1}, other]} for w in words]
        message = {"role": "assistant", "content": " ".join(words)}
        choice = {"index": 0, "message": message, "logprobs": {"content": told}, "finish_reason": "stop"}
        self._say(asked, {"choices": [choice], "usage": {"prompt_tokens": taken, "completion_tokens": len(words)}})

    def _say(self, asked: Any, document: Any) -> None:
        document = self.server.tells(asked, document)
        body = json.dumps(document).encode()
        self.send_response(400 if document is None else 200)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        pass


def _answer(content: Any) -> tuple[list[str], int]:
    """Words, and prompt tokens."""
    if isinstance(content, str):
        return ["you", "said", *content.split()[:8]], len(content.split())
    data = base64.b64decode(content[0]["image_url"]["url"].partition(",")[2])
    with Image.open(io.BytesIO(data)) as picture:
        red, green, blue = picture.convert("RGB").getpixel((picture.width // 2, picture.height // 2))
    names = {(True, False, False): "red", (False, True, False): "green", (False, False, True): "blue", (True, True, False): "yellow"}
    return ["it", "is", names[red > 130, green > 130, blue > 130]], len(content[1]["text"].split()) + 20


@pytest.fixture
def engine() -> Iterator[Engine]:
    with Engine() as made:
        threading.Thread(target=made.serve_forever, args=(0.02,), daemon=True).start()
        yield made
        made.shutdown()


def test_an_engine_started_elsewhere_is_seen_from_outside(engine: Engine, model: Path, tmp_path: Path) -> None:
    engine.mixes = True
    stopped = climbed(model, tmp_path / "record", rungs=LADDER, endpoint=engine.url)
    assert (stopped.stopped_at, stopped.variable) == ("batch", "several sequences in one step")
    assert any("somebody else" in one.observed for one in stopped.steps[9].evidence)
    engine.mixes = False
    up = climbed(model, tmp_path / "record", rungs=LADDER, endpoint=engine.url)
    assert {step.name: step.status for step in up.steps} == {
        "environment": "pass", "operators": "skipped", "weights": "pass", "plan": "skipped", "one device": "skipped",
        "one host": "skipped", "two hosts": "skipped", "all hosts": "skipped", "serial request": "pass", "batch": "pass",
        "long": "pass", "image": "pass",
    }  # fmt: skip
    assert [step.name for step in up.steps if step.kept] == ["environment", "weights"]
    written = msgspec.json.decode((tmp_path / "record" / "bringup.json").read_bytes(), type=BringupDocument)
    assert written == up
    engine.shutdown()
    engine.server_close()
    gone = climbed(model, tmp_path / "record", rungs=LADDER, endpoint=engine.url)
    assert (gone.status, gone.stopped_at) == ("fail", "serial request")


def test_an_engine_that_takes_too_short_a_context_is_named(engine: Engine, model: Path, tmp_path: Path) -> None:
    stopped = climbed(model, tmp_path / "record", "serial request", "batch", "long", endpoint=engine.url, context=900)
    assert stopped.stopped_at == "long"
    assert "takes 400 tokens and 900 were asked for" in stopped.steps[2].summary


def test_an_engine_that_is_not_there_stops_at_the_first_question(model: Path, tmp_path: Path) -> None:
    stopped = climbed(model, tmp_path / "record", "serial request", endpoint="http://127.0.0.1:9")
    assert (stopped.stopped_at, stopped.steps[0].status) == ("serial request", "fail")


QUESTIONS = ("serial request", "batch", "long", "image")


def asked_of(engine: Engine, model: Path, folder: Path, tells: Callable[[Any, Any], Any], *names: str) -> BringupDocument:
    """The rungs that ask, of an engine that tells this."""
    engine.tells = tells
    return climbed(model, folder, *(names or QUESTIONS), endpoint=engine.url)


@pytest.mark.parametrize("said", [[1], {"error": "no such page"}, {"data": None}, {"data": [{"name": "foreign"}]}])
def test_models_of_a_wrong_url_are_a_bad_answer(engine: Engine, model: Path, tmp_path: Path, said: Any) -> None:
    stopped = asked_of(engine, model, tmp_path / "record", lambda asked, document: said, "serial request")
    assert stopped.stopped_at == "serial request"
    assert "/models was not answered as an OpenAI server does" in stopped.steps[0].summary


@pytest.mark.parametrize("said", [{"error": "busy"}, {"choices": []}, {"choices": [{"message": None}]}, ["text"]])
def test_answers_of_a_wrong_url_are_a_bad_answer(engine: Engine, model: Path, tmp_path: Path, said: Any) -> None:
    stopped = asked_of(engine, model, tmp_path / "record", lambda asked, document: said if asked else document, "serial request")
    assert stopped.stopped_at == "serial request"
    assert "/chat/completions was not answered as an OpenAI server does" in stopped.steps[0].summary


def late(field: str | None, needs: int) -> Callable[[Any, Any], Any]:
    """An engine that thinks for `needs` tokens before it answers, and tells its thoughts under this name."""

    def tells(asked: Any, document: Any) -> Any:
        if asked and asked["max_tokens"] < needs:
            choice = document["choices"][0]
            choice.update(finish_reason="length", logprobs=None, message={"content": None, **({field: "let me see"} if field else {})})
        return document

    return tells


@pytest.mark.parametrize("field", ["reasoning_content", "reasoning", None])
def test_a_model_that_thinks_first_is_not_judged_by_short_answers(engine: Engine, model: Path, tmp_path: Path, field: str | None) -> None:
    up = asked_of(engine, model, tmp_path / "record", late(field, 150), "serial request", "batch", "image")
    assert {step.name: step.status for step in up.steps} == {"serial request": "skipped", "batch": "skipped", "image": "skipped"}
    assert up.steps[0].summary.startswith("it thinks before it answers")


def test_a_model_that_never_answers_still_fails(engine: Engine, model: Path, tmp_path: Path) -> None:
    stopped = asked_of(engine, model, tmp_path / "record", late(None, 100_000), "serial request")
    assert "no answer holds text" in stopped.steps[0].summary


def test_an_engine_without_usage_is_judged_by_the_rest(engine: Engine, model: Path, tmp_path: Path) -> None:
    up = asked_of(engine, model, tmp_path / "record", lambda asked, document: {**document, "usage": None})
    assert [step.status for step in up.steps] == ["pass", "pass", "skipped", "pass"]
    assert "does not tell prompt tokens" in up.steps[2].summary
    assert "prompt tokens for a picture: not told" in up.steps[3].summary


def test_an_engine_that_takes_no_cache_salt_is_compared_without(engine: Engine, model: Path, tmp_path: Path) -> None:
    def tells(asked: Any, document: Any) -> Any:
        return None if asked and "cache_salt" in asked else document

    up = asked_of(engine, model, tmp_path / "record", tells, "long")
    assert up.steps[0].status == "pass"
    assert "answered 2 times alike" in up.steps[0].summary
    assert any(one.name == "computed again" and "takes no cache_salt" in one.observed for one in up.steps[0].evidence)


def without_logprobs(document: Any, text: str) -> Any:
    document["choices"][0].update(logprobs=None, message={"content": text})
    return document


def test_without_log_probabilities_words_are_compared(engine: Engine, model: Path, tmp_path: Path) -> None:
    def loops(asked: Any, document: Any) -> Any:
        return without_logprobs(document, "and so " * 40) if asked else document

    stopped = asked_of(engine, model, tmp_path / "loops", loops, "serial request")
    assert "8 of 8 answers repeat a few tokens" in stopped.steps[0].summary
    turns = iter(range(1000))

    def differs(asked: Any, document: Any) -> Any:
        return without_logprobs(document, f"answer {next(turns)}") if asked else document

    up = asked_of(engine, model, tmp_path / "differs", differs, "serial request")
    assert up.steps[0].status == "skipped"  # as it may be a near tie
    assert "cannot be told" in up.steps[0].summary


def test_a_long_prompt_says_what_was_cached_and_fails_without_an_answer(engine: Engine, model: Path, tmp_path: Path) -> None:
    def cached(asked: Any, document: Any) -> Any:
        return {**document, "usage": {"prompt_tokens": document["usage"]["prompt_tokens"], "prompt_tokens_details": {"cached_tokens": 48}}}

    up = asked_of(engine, model, tmp_path / "cached", lambda asked, document: cached(asked, document) if asked else document, "long")
    assert up.steps[0].summary.endswith("0 of them up to a near tie; in the prefix cache the second time: 48 tokens")
    up = asked_of(engine, model, tmp_path / "untold", lambda asked, document: document, "long")
    assert up.steps[0].summary.endswith("in the prefix cache the second time: not told")
    silent = lambda asked, document: without_logprobs(document, "") if asked else document  # noqa: E731
    empty = asked_of(engine, model, tmp_path / "empty", silent, "long")
    assert (empty.stopped_at, empty.steps[0].status) == ("long", "fail")
    assert "neither tokens nor text" in empty.steps[0].summary


def test_a_damaged_file_of_a_rung_below_is_named_and_again_removes_it(engine: Engine, model: Path, tmp_path: Path) -> None:
    record = Record(tmp_path / "record")
    for content in (b'[[["a"], [1.0]', b'{"tokens": 1}', b"\xff"):
        for name in ("serial.json", "single_device.json"):
            (record.folder / name).write_bytes(content)
            with pytest.raises(UsageError, match=f"{name} is damaged"):
                kept(record.folder, name, list[Alone])
    stopped = climbed(model, record.folder, "batch", endpoint=engine.url)
    assert (stopped.stopped_at, stopped.steps[0].next) == ("batch", ["--again starts over"])
    record.forget()
    assert not list(record.folder.glob("*.json"))

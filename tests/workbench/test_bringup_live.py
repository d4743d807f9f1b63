"""The whole command on the shipped model, with servers of ours: it passes; with a fault it stops at the right rung, mended it passes."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from probes.checkpoint import Checkpoint
from runtime.shipped import shapes_moe

ROOT = Path(__file__).parents[2]
pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return Path(shutil.copytree(shapes_moe(), tmp_path / "shapes-moe"))


@pytest.fixture
def bringup(model: Path, tmp_path: Path) -> Callable[..., dict[str, Any]]:
    """bringup(flags): the document; its exit code says the same as its status."""

    def call(*flags: str, **variables: str) -> dict[str, Any]:
        command = [sys.executable, "-m", "workbench", "bringup", str(model), "--record", str(tmp_path / "record"), "--json", *flags]
        environment = os.environ | {"WORKBENCH_RUNS": str(tmp_path / "runs")} | variables
        done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
        assert done.returncode in (0, 3), done.stderr
        document: dict[str, Any] = json.loads(done.stdout)
        assert (document["status"] == "pass") == (done.returncode == 0)
        return document

    return call


def step(document: dict[str, Any], name: str) -> dict[str, Any]:
    return next(one for one in document["steps"] if one["name"] == name)


def test_the_shipped_model_comes_up_and_a_second_call_keeps_it(bringup: Callable[..., dict[str, Any]]) -> None:
    up = bringup()
    assert up["status"] == "pass"
    assert [one["name"] for one in up["steps"] if one["status"] == "skipped"] == ["two hosts", "all hosts"]
    assert "4 answers are those of one device" in step(up, "one host")["summary"]
    again = bringup()
    assert all(one["kept"] for one in again["steps"] if one["status"] == "pass")


def wrong_values(model: Path, tmp_path: Path) -> Callable[[], None]:
    """An infinity that only headers would hide."""
    entry = Checkpoint.open(model).tensors["model.language_model.layers.2.mlp.gate.weight"]
    file = model / entry.file
    whole = file.read_bytes()
    file.write_bytes(whole[: entry.offset] + b"\x80\x7f" + whole[entry.offset + 2 :])
    return lambda: _restore(file, whole)


def wrong_placement(model: Path, tmp_path: Path) -> Callable[[], None]:
    """A map that leaves an expert out."""
    layer = [0, *range(15)]
    file, settings = tmp_path / "placement.json", tmp_path / "serve.toml"
    file.write_text(json.dumps({"layers": [layer] * 4}))
    settings.write_text(f'model = "{model}"\nep = 2\nplacement = "{file}"\n')
    return lambda: _restore(settings, f'model = "{model}"\nep = 2\n'.encode())


def wrong_template(model: Path, tmp_path: Path) -> Callable[[], None]:
    """One that gives up when it is rendered."""
    file = model / "chat_template.jinja"
    whole = file.read_bytes()
    file.write_bytes(b"{{ raise_exception('roles must be other than they are') }}")
    return lambda: _restore(file, whole)


def no_end(model: Path, tmp_path: Path) -> Callable[[], None]:
    """An end-of-answer token that the model never says."""
    files = {model / name: (model / name).read_bytes() for name in ("generation_config.json", "config.json", "tokenizer_config.json")}
    for file, whole in files.items():
        changed = whole.replace(b'"eos_token_id": 998', b'"eos_token_id": 997')
        file.write_bytes(changed.replace(b'"eos_token": "<|im_end|>"', b'"eos_token": "<|vision_end|>"'))

    def mend() -> None:
        for file, whole in files.items():
            _restore(file, whole)

    return mend


def small_cache(model: Path, tmp_path: Path) -> Callable[[], None]:
    """KV blocks for 256 tokens."""
    settings = tmp_path / "serve.toml"
    settings.write_text(f'model = "{model}"\nep = 2\nkv_blocks = 16\nmax_model_len = 1000\n')
    return lambda: _restore(settings, f'model = "{model}"\nep = 2\nmax_model_len = 1000\n'.encode())


def blind(model: Path, tmp_path: Path) -> Callable[[], None]:
    """Pictures that are divided until nothing is left of them."""
    file = model / "preprocessor_config.json"
    whole = file.read_bytes()
    file.write_text(json.dumps({**json.loads(whole), "image_std": [5000.0] * 3}))
    return lambda: _restore(file, whole)


def test_a_second_host_is_the_step_behind_the_first(bringup: Callable[..., dict[str, Any]], model: Path, tmp_path: Path) -> None:
    """The other host is a process on this one; it waits until the head listens."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        head = f"127.0.0.1:{probe.getsockname()[1]}"
    flags = ("--ep", "2", "--nodes", "2", "--head", head)
    environment = os.environ | {"WORKBENCH_JOIN_TOKEN": "a secret of this test", "WORKBENCH_RUNS": str(tmp_path / "runs1")}
    command = [sys.executable, "-m", "workbench", "serve", str(model), *flags, "--node-rank", "1"]
    with (tmp_path / "member").open("w") as said:
        member = subprocess.Popen(command, cwd=ROOT, env=environment, stdout=said, stderr=said, start_new_session=True)
        try:
            up = bringup(*flags, WORKBENCH_JOIN_TOKEN="a secret of this test")
            assert step(up, "two hosts")["status"] == "pass", step(up, "two hosts")
            assert any(one["name"] == "layout" and "2 hosts" in one["observed"] for one in step(up, "two hosts")["evidence"])
            assert step(up, "all hosts")["status"] == "skipped"
            assert member.wait(60) is not None
        finally:
            if member.poll() is None:
                member.kill()
                member.wait()


def _restore(file: Path, content: bytes) -> None:
    file.write_bytes(content)


FAULTS: list[tuple[Callable[[Path, Path], Callable[[], None]], tuple[str, ...], str, str]] = [
    (wrong_values, ("--headers-only",), "one device", "finite"),
    (wrong_placement, ("--config", "serve.toml"), "one host", "expert"),
    (wrong_template, (), "serial request", "template"),
    (no_end, (), "serial request", "end-of-answer token"),
    (small_cache, ("--config", "serve.toml", "--context", "900"), "long", "256 tokens"),
    (blind, (), "image", "alike"),
]


@pytest.mark.parametrize(("fault", "flags", "rung", "word"), FAULTS, ids=[fault[0].__name__ for fault in FAULTS])
def test_a_fault_stops_it_and_mending_lets_it_pass(
    bringup: Callable[..., dict[str, Any]], model: Path, tmp_path: Path, fault: Callable[[Path, Path], Callable[[], None]],
    flags: tuple[str, ...], rung: str, word: str,
) -> None:  # fmt: skip
    mend = fault(model, tmp_path)
    given = [str(tmp_path / flag) if flag.endswith(".toml") else flag for flag in flags]
    stopped = bringup(*given)
    assert stopped["stopped_at"] == rung, stopped["steps"]
    assert word in step(stopped, rung)["summary"]
    assert all(one["status"] in ("pass", "skipped") for one in stopped["steps"][: [s["name"] for s in stopped["steps"]].index(rung)])
    mend()
    assert bringup(*given)["status"] == "pass"

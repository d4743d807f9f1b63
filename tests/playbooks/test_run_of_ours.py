"""image-drift and garbled-output of a run of ours: of a live server, of a faulty one, and of one that is gone.

Three servers in all. One exchanges the channels of every picture behind our code's back (PIL's own conversion is replaced before anything
is imported), and its experts take no more than an even share of the tokens; in the prefix cache of another all pictures have one key.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from playbooks.live_server import live_server
from probes.asking import Asker, about, picture_uri
from runtime.control_client import ControlClient
from runtime.forward_variable import FORWARD_STYLE
from runtime.images import ImageSettings
from runtime.serve_config import ServeConfig
from runtime.server_process import ServerProcess, start_server
from runtime.shipped import shapes_moe
from traces.run import create_run
from workbench.cli.main import run as workbench

pytest.importorskip("torch")
BGR = """
import sys
if any("serve_main" in word for word in sys.orig_argv):
    from PIL import Image
    plain = Image.Image.convert
    def convert(self, mode=None, *rest, **named):
        made = plain(self, mode, *rest, **named)
        return Image.merge("RGB", made.split()[::-1]) if mode == "RGB" else made
    Image.Image.convert = convert
"""
ONE_KEY = """
import sys
if any("serve_main" in word for word in sys.orig_argv):
    import runtime.prefix_digest
    runtime.prefix_digest.image_digest = lambda data, grid: bytes(16)
"""


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    root = tmp_path_factory.mktemp("runs")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("WORKBENCH_RUNS", str(root))
        yield root


def serve(model: Path, runs: Path) -> ServerProcess:
    return start_server(ServeConfig(model=str(model), ep=1, port=0, run_root=str(runs)))


def harmed(harm: str, site: Path, runs: Path, style: str = "right") -> ServerProcess:
    """A server into which `harm` is imported before anything else."""
    (site / "sitecustomize.py").write_text(harm)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", os.pathsep.join(filter(None, [str(site), os.environ.get("PYTHONPATH")])))
        patch.setenv(FORWARD_STYLE, style)
        return serve(shapes_moe(), runs)


@pytest.fixture(scope="module")
def good(runs: Path) -> Iterator[ServerProcess]:
    with serve(shapes_moe(), runs) as server:
        yield server


@pytest.fixture(scope="module")
def bad(runs: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with harmed(BGR, tmp_path_factory.mktemp("site"), runs, "capacity") as server:
        yield server


@pytest.fixture
def told(capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, dict[str, Any], dict[str, dict[str, Any]]]]:
    """told(arguments) -> exit code, the diagnosis, and its checks by the last part of their names."""

    def ask(symptom: str, *more: str) -> tuple[int, dict[str, Any], dict[str, dict[str, Any]]]:
        capsys.readouterr()
        code = workbench(["diagnose", symptom, *more, "--json"])
        found = json.loads(capsys.readouterr().out)
        return code, found, {one["id"].partition(".")[2]: one for one in found["checks"]}

    return ask


def test_a_good_server_is_healthy(good: ServerProcess, told: Any) -> None:
    code, found, checks = told("image-drift", "--run", good.run.id)
    assert (code, found["verdict"]) == (0, "healthy")
    assert {checks[name]["outcome"] for name in ("sight", "recipe", "mrope", "placeholder-mismatch", "unexplained")} == {"pass"}
    code, found, checks = told("garbled-output", "--run", good.run.id, "--reference", "shapes")
    assert (code, found["verdict"]) == (0, "healthy")
    assert {checks[name]["outcome"] for name in ("endpoint-answer", "prefix-cache")} == {"pass"}
    assert "48 of 64 tokens came from the cache" in checks["prefix-cache"]["summary"]


def test_a_faulty_server_is_named(bad: ServerProcess, told: Any) -> None:
    code, found, _ = told("image-drift", "--run", bad.run.id)
    first = found["findings"][0]
    assert (code, first["id"], first["confidence"]["basis"]) == (3, "image.channel-order", "established")
    code, found, _ = told("garbled-output", "--run", bad.run.id, "--reference", "shapes")
    first = found["findings"][0]
    assert (code, first["id"]) == (3, "garbled.endpoint-answer")
    assert "--prefix-cache false" in first["remedy"][0]["text"]


def test_a_cache_that_takes_one_picture_for_another_is_named(runs: Path, told: Any, tmp_path: Path) -> None:
    """The tensors are right; what is wrong is which of them an answer is computed from."""
    with harmed(ONE_KEY, tmp_path, runs) as server:
        code, found, checks = told("image-drift", "--run", server.run.id)
    assert (code, [one["id"] for one in found["findings"]]) == (3, ["image.cross-request-cache"])
    assert checks["unexplained"]["outcome"] == "pass"


def test_a_folder_that_changed_or_another_recipe_is_told(good: ServerProcess, told: Any, tmp_path: Path) -> None:
    """Held against a folder with a quarter of the budget."""
    folder = tmp_path / "model"
    folder.mkdir()
    for name in ("config.json", "preprocessor_config.json"):
        (folder / name).write_bytes((shapes_moe() / name).read_bytes())
    changed = json.loads((folder / "preprocessor_config.json").read_text()) | {"size": {"shortest_edge": 2048, "longest_edge": 2560}}
    (folder / "preprocessor_config.json").write_text(json.dumps(changed))
    code, found, checks = told("image-drift", "--run", good.run.id, "--model", str(folder))
    assert (code, found["findings"][0]["id"]) == (3, "image.pixel-budget")
    assert checks["recorded-grids"]["outcome"] == "fail"


def test_what_the_server_hands_to_a_rank_is_what_transformers_makes(good: ServerProcess) -> None:
    """The tensor of /control/prompt beside transformers' own processor, and the tokens beside those that a request is charged."""
    transformers = pytest.importorskip("transformers")
    import base64

    import numpy as np

    from playbooks.image_drift.pictures import photograph

    image = photograph(4)
    with ControlClient.for_run(good.run) as control:
        made = control.prompt(about(picture_uri(image), "Hello."))
    (seen,) = made["images"]
    pixels = np.frombuffer(base64.b64decode(seen["pixels"]), "<f4").reshape(-1, seen["width"])
    processor = transformers.Qwen2VLImageProcessorPil.from_pretrained(shapes_moe())
    right = processor(images=[image], return_tensors="np")
    assert seen["grid"] == right["image_grid_thw"][0].tolist()
    assert np.abs(pixels - right["pixel_values"]).max() < 1e-5
    with Asker(good.url) as asker:
        assert asker.chat(about(picture_uri(image), "Hello."), 1).prompt_tokens == len(made["tokens"])
    assert seen["count"] == len(pixels) // ImageSettings.read(shapes_moe()).merge ** 2


def test_a_run_that_is_over_clears_nothing(good: ServerProcess, told: Any) -> None:
    """The good server is stopped: no test after this one may need it."""
    good.stop()
    for symptom, name, more in (("image-drift", "sight", ()), ("garbled-output", "endpoint-answer", ("--reference", "shapes"))):
        code, found, checks = told(symptom, "--run", good.run.id, *more)
        assert (code, found["verdict"], checks[name]["outcome"]) == (5, "inconclusive", "skipped")
        assert "is closed; `workbench serve" in checks[name]["summary"]
    checks = told("image-drift", "--run", good.run.id)[2]
    assert checks["recorded-grids"]["outcome"] == "pass"  # the pictures that the tests before sent


def test_an_address_that_is_another_runs_by_now_is_not_asked(bad: ServerProcess, runs: Path) -> None:
    gone = create_run(engine="workbench", model="m", root=runs, endpoint=bad.run.info.endpoint)
    assert live_server(bad.run).url == bad.url
    assert live_server(gone).url is None and f"is another run's ({bad.run.id})" in live_server(gone).why

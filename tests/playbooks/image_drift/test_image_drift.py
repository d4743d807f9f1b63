"""image-drift on tensors that transformers and torch made, through the command line, and on answers of a server."""

from __future__ import annotations

import io
import json
import pickle
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from playbooks.document import Diagnosis
from playbooks.image_drift.drills import DRILLS
from playbooks.image_drift.pictures import photograph
from playbooks.image_drift.probe import run_of_probes
from playbooks.runner import diagnose
from traces.errors import BadAnswer, UsageError
from traces.run import create_run
from workbench.cli.main import run as workbench

transformers = pytest.importorskip("transformers")

CONFIG = {
    "image_processor_type": "Qwen2VLImageProcessor", "patch_size": 16, "image_mean": [0.5] * 3, "image_std": [0.5] * 3,
    "size": {"shortest_edge": 4096, "longest_edge": 65536},
}  # fmt: skip
CLIP = {"image_mean": [0.48145466, 0.4578275, 0.40821073], "image_std": [0.26862954, 0.26130258, 0.27577711]}


@pytest.fixture
def model(tmp_path: Path) -> Path:
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "preprocessor_config.json").write_text(json.dumps(CONFIG))
    (folder / "config.json").write_text(json.dumps({"image_token_id": 300}))
    photograph(1).resize((301, 227)).save(folder.parent / "a.png")
    return folder


def processed(path: Path, **changes: Any) -> dict[str, np.ndarray]:
    from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

    config = {name: value for name, value in {**CONFIG, **changes}.items() if name != "image_processor_type"}
    return dict(Qwen2VLImageProcessorPil(**config)(images=[Image.open(path)], return_tensors="np"))


def judged(model: Path, held: dict[str, np.ndarray]) -> Diagnosis:
    np.savez(model.parent / "dump.npz", **held)
    run = run_of_probes(model, [(model.parent / "a.png", model.parent / "dump.npz")], root=model.parent / "runs")
    return diagnose(run, "image-drift", argv=())


SAID = [
    ({}, None, ""),
    (CLIP, "image.normalize-constants", "normalised with CLIP's constants"),
    ({"do_rescale": False}, "image.rescale", "not rescaled by 1/255"),
    ({"do_normalize": False}, "image.normalize-constants", "not normalised"),
    ({"resample": 2}, "image.resize-filter", "resized with bilinear"),
    ({"size": {"shortest_edge": 4096, "longest_edge": 32768}}, "image.pixel-budget", "limited to 32768 pixels instead of 65536"),
]


@pytest.mark.parametrize(("changes", "cause", "words"), SAID)
def test_other_settings_of_transformers_are_told(model: Path, changes: dict[str, Any], cause: str | None, words: str) -> None:
    held = processed(model.parent / "a.png", **changes)
    found = judged(model, held)
    if cause is None:
        assert (found.verdict, found.findings) == ("healthy", ())
        return
    first = found.findings[0]
    assert (found.verdict, first.id, first.confidence.basis) == ("problem", cause, "established")
    assert words in first.title and len(found.findings) == 1


def test_noise_of_a_level_is_benign_and_said_to_be(model: Path) -> None:
    held = processed(model.parent / "a.png")
    shape = held["pixel_values"].reshape(len(held["pixel_values"]), 3, 2, -1)[:, :, :1].shape
    noise = np.repeat(np.random.default_rng(0).uniform(-1.4, 1.4, shape), 2, 2).reshape(held["pixel_values"].shape) * 2 / 255
    found = judged(model, {**held, "pixel_values": (held["pixel_values"] + noise).astype(np.float32)})
    assert found.verdict == "healthy"
    assert all("benign" in one.summary for one in found.checks if one.id == "image.unexplained")


def test_another_picture_alone_is_undetermined(model: Path) -> None:
    Image.fromarray(np.random.default_rng(0).integers(0, 255, (227, 301, 3), dtype=np.uint8)).save(model.parent / "b.png")
    found = judged(model, processed(model.parent / "b.png"))
    assert (found.verdict, [one.id for one in found.findings]) == ("warning", ["image.unexplained"])


@pytest.mark.parametrize(("size", "kind"), [((301, 227), "PNG"), ((301, 227), "JPEG"), ((256, 192), "PNG"), ((256, 192), "JPEG")])
def test_one_lost_patch_is_not_explained_by_ways_that_change_little(model: Path, size: tuple[int, int], kind: str) -> None:
    """256 x 192 pixels need no resize, so that other filters change nothing."""
    photograph(1).resize(size).save(model.parent / "a.png", kind)
    held = processed(model.parent / "a.png")
    held["pixel_values"] = held["pixel_values"].copy()
    held["pixel_values"][7] = 0
    found = judged(model, held)
    assert (found.verdict, [one.id for one in found.findings]) == ("warning", ["image.unexplained"])


def test_a_grey_picture_cannot_tell_channels(model: Path) -> None:
    Image.open(model.parent / "a.png").convert("L").convert("RGB").save(model.parent / "a.png")
    held = processed(model.parent / "a.png")
    patches = held["pixel_values"].reshape(len(held["pixel_values"]), 3, -1)[:, ::-1]
    assert judged(model, {**held, "pixel_values": patches.reshape(held["pixel_values"].shape)}).verdict == "healthy"


def test_inf_is_a_number_format(model: Path) -> None:
    held = processed(model.parent / "a.png")
    held["pixel_values"] = held["pixel_values"].copy()
    held["pixel_values"][3, 5] = np.inf
    first = judged(model, held).findings[0]
    assert (first.id, first.confidence.basis) == ("image.dtype-path", "supported")
    assert [one.observed for one in first.evidence] == [1] and "That way leaves" not in first.summary


def test_placeholders_and_positions(model: Path) -> None:
    """16 x 12 patches are 8 x 6 tokens; after a picture the positions go on after its longer side (8)."""
    held = processed(model.parent / "a.png")
    _, height, width = held["image_grid_thw"][0].tolist()
    rows, columns = height // 2, width // 2
    ids = np.array([1, 2, *[300] * (rows * columns), 3])
    flat = np.tile(np.arange(len(ids)), (3, 1))
    right = flat.copy()
    right[:, 2:-1] = [[2] * rows * columns, np.repeat(np.arange(rows), columns) + 2, np.tile(np.arange(columns), rows) + 2]
    right[:, -1] = 2 + max(rows, columns)
    good = judged(model, {**held, "input_ids": ids, "position_ids": right})
    assert {one.id: one.outcome for one in good.checks if one.id in ("image.mrope", "image.placeholder-mismatch")} == {
        "image.mrope": "pass", "image.placeholder-mismatch": "pass",
    }  # fmt: skip
    four = np.concatenate((np.arange(len(ids))[None], right))[:, None]  # transformers: the text's positions first, [4, batch, T]
    for positions, outcome in ((four, "pass"), (four.repeat(2, 1), "skipped"), (np.int64(3), "skipped")):
        asked = judged(model, {**held, "input_ids": ids, "position_ids": np.asarray(positions)})
        assert next(one.outcome for one in asked.checks if one.id == "image.mrope") == outcome
    wrong = judged(model, {**held, "input_ids": ids, "position_ids": flat})
    assert wrong.findings[0].id == "image.mrope" and "plain positions" in wrong.findings[0].summary
    short = judged(model, {**held, "input_ids": ids[1:-3]})
    assert short.findings[0].id == "image.placeholder-mismatch"


WRONG_FILES = [
    ("config.json", "{", "config.json cannot be read"),
    ("config.json", "[]", "config.json holds no object"),
    *(
        ("preprocessor_config.json", json.dumps({**CONFIG, **changes}), "cannot be used")
        for changes in ({"patch_size": "16"}, {"resample": 99}, {"image_std": [0, 0, 0]}, {"rescale_factor": 0}, {"image_mean": [0.5]})
    ),
    ("../a.png", "no picture", "cannot be decoded"),
    ("../a.png", "", "cannot be decoded"),
    ("../a.png", "%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n", "cannot be decoded"),
]


@pytest.mark.parametrize(("name", "text", "said"), WRONG_FILES)
def test_wrong_files_are_said_at_once(model: Path, name: str, text: str, said: str) -> None:
    np.savez(model.parent / "dump.npz", **processed(model.parent / "a.png"))
    (model / name).write_text(text)
    with pytest.raises(UsageError, match=said):
        run_of_probes(model, [(model.parent / "a.png", model.parent / "dump.npz")], root=model.parent / "runs")


def test_wrong_dumps_are_said_at_once(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    held = processed(model.parent / "a.png")
    wrong = [
        ({"image_grid_thw": np.array([12, 16])}, "is no grid"),
        ({"image_grid_thw": held["image_grid_thw"].repeat(2, 0)}, "the dump holds 2 pictures"),
        ({"pixel_values": held["pixel_values"][:0]}, "no numbers"),
    ]
    for changes, said in wrong:
        with pytest.raises(UsageError, match=said):
            judged(model, {**held, **changes})
    from safetensors.numpy import save_file

    save_file({**held, "file": np.zeros(3)}, model.parent / "dump.safetensors")
    run = run_of_probes(model, [(model.parent / "a.png", model.parent / "dump.safetensors")], root=model.parent / "runs")
    assert diagnose(run, "image-drift", argv=()).verdict == "healthy"
    np.savez_compressed(model.parent / "large.npz", pixel_values=np.zeros(1 << 16))
    monkeypatch.setattr("runtime.pixels.dump.LIMIT", 1 << 16)
    with pytest.raises(UsageError, match="unpacked"):
        run_of_probes(model, [(model.parent / "a.png", model.parent / "large.npz")], root=model.parent / "runs")


def test_the_command_reads_every_kind_of_dump(model: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    torch = pytest.importorskip("torch")
    from safetensors.torch import save_file

    monkeypatch.setenv("WORKBENCH_RUNS", str(model.parent / "runs"))
    picture = model.parent / "a.png"
    good, bad = (torch.from_numpy(processed(picture, **changes)["pixel_values"].copy()) for changes in ({}, CLIP))
    torch.save(bad, model.parent / "bad.pt")
    save_file({"pixel_values": good.bfloat16()}, model.parent / "good.safetensors")
    ask = ["diagnose", "image-drift", "--image", str(picture), "--model", str(model), "--json", "--observed"]
    assert workbench([*ask, str(model.parent / "bad.pt")]) == 3
    assert json.loads(capsys.readouterr().out)["findings"][0]["id"] == "image.normalize-constants"
    assert workbench([*ask, str(model.parent / "good.safetensors")]) == 0
    assert workbench(ask[:-1]) == 2 and workbench([*ask, str(model.parent / "none.npy")]) == 2
    assert workbench([*ask, str(model.parent / "bad.pt"), "--grid", "1,2"]) == 2


def test_a_dump_that_runs_code_is_refused(model: Path) -> None:
    class Harm:
        def __reduce__(self) -> tuple[Any, ...]:
            return (open, (str(model.parent / "harm"), "w"))

    for name in ("x.pt", "x.npy"):
        (model.parent / name).write_bytes(pickle.dumps({"pixel_values": Harm()}))
        with pytest.raises(UsageError, match="cannot be read"):
            run_of_probes(model, [(model.parent / "a.png", model.parent / name)], root=model.parent / "runs")
    assert not (model.parent / "harm").exists()


def test_a_run_without_pictures_is_inconclusive(tmp_path: Path) -> None:
    run = create_run(engine="x", root=tmp_path)
    run.update(state="closed")
    found = diagnose(run, "image-drift", argv=())
    assert found.verdict == "inconclusive" and all(one.outcome in ("skipped", "pass") for one in found.checks)


@pytest.fixture
def server() -> Iterator[Callable[[Callable[[str, str, int], str], int], str]]:
    """A server whose answers a test gives: (question, the picture as it was sent, tokens of the picture)."""
    made: list[ThreadingHTTPServer] = []

    def start(answer: Callable[[Image.Image], str], tokens: Callable[[int, int], int]) -> str:
        import base64

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self._send({"data": [{"id": "m"}]})

            def do_POST(self) -> None:
                content = json.loads(self.rfile.read(int(self.headers["content-length"])))["messages"][0]["content"]
                said, used = "hello", {"prompt_tokens": 10}
                if isinstance(content, list):
                    image = Image.open(io.BytesIO(base64.b64decode(content[0]["image_url"]["url"].split(",")[1])))
                    count = tokens(image.height, image.width)
                    said, used = answer(image), None if count is None else {"prompt_tokens": 12 + count}
                self._send({"choices": [{"message": {"content": said}}], "usage": used})

            def _send(self, body: dict[str, Any]) -> None:
                data = json.dumps(body).encode()
                self.send_response(200)
                self.send_header("content-length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            def log_message(self, *_: Any) -> None:
                pass

        one = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=one.serve_forever, daemon=True).start()
        made.append(one)
        return f"http://127.0.0.1:{one.server_port}"

    yield start
    for one in made:
        one.shutdown()
        one.server_close()


def seeing(image: Image.Image, exchanged: bool = False) -> str:
    """A model that sees; `exchanged`: fed with BGR."""
    pixels = np.asarray(image.convert("RGB")).astype(int)
    if exchanged:
        pixels = pixels[..., ::-1]
    shape = np.abs(pixels - pixels[0, 0]).sum(-1) > 100
    if not shape.any():
        return "Nothing."
    (y, x), colour = np.argwhere(shape).mean(0), pixels[shape].mean(0)
    place = "left" if x < pixels.shape[1] / 3 else "right" if x > pixels.shape[1] * 2 / 3 else ""
    place = place or ("top" if y < pixels.shape[0] / 3 else "bottom" if y > pixels.shape[0] * 2 / 3 else "")
    return f"It is at the {place}." if place else "Red." if colour[0] > colour[2] else "Blue."


def by_recipe(height: int, width: int) -> int:
    """Tokens of 32 x 32 pixels; every size asked about is within the budget, or scaled into 65536 pixels."""
    scale = max(1.0, (height * width / 65536) ** 0.5)
    return int(height / scale / 32) * int(width / scale / 32)


@pytest.mark.parametrize(
    ("answer", "tokens", "cause", "outcome"),
    [
        (seeing, by_recipe, None, "pass"),
        (lambda image: seeing(image, True), by_recipe, "image.channel-order", "fail"),
        (lambda image: "red left top", by_recipe, "image.placeholder-mismatch", "fail"),
        (lambda image: " ", by_recipe, None, "skipped"),
        (lambda image: seeing(image) if seeing(image) in ("Red.", "Blue.") else "upper", by_recipe, None, "skipped"),
        (seeing, lambda height, width: 0, "image.placeholder-mismatch", "fail"),
        (seeing, lambda height, width: height * width // 784, "image.placeholder-mismatch", "fail"),
    ],
)
def test_a_server_is_asked_from_outside(server: Any, model: Path, answer: Any, tokens: Any, cause: str | None, outcome: str) -> None:
    from playbooks.image_drift.asked import run_of_endpoint

    run = run_of_endpoint(server(answer, tokens), model, root=model.parent / "runs")
    found = diagnose(run, "image-drift", argv=())
    assert next(one for one in found.checks if one.id == "image.sight").outcome == outcome
    assert (found.findings[0].id if found.findings else None) == cause
    if cause is None:
        assert found.verdict == "inconclusive"  # tensors were not compared


def test_a_jpeg_of_odd_sides_is_reduced_and_its_quality_is_found(model: Path) -> None:
    from playbooks.image_drift.decoder import half_size, nearest_chroma
    from playbooks.image_drift.pictures import jpeg

    data = jpeg(photograph(1).resize((301, 227)))
    assert half_size(data).size == (151, 114)
    full = Image.open(io.BytesIO(data)).convert("RGB")
    changed = np.abs(np.asarray(nearest_chroma(data), int) - np.asarray(full, int))
    assert 0 < changed.mean() < 8  # shifted planes would differ by far more
    (model.parent / "a.png").write_bytes(data)
    Image.open(io.BytesIO(jpeg(full, quality=72, subsampling=-1))).save(model.parent / "b.png")
    found = judged(model, processed(model.parent / "b.png"))
    assert found.findings[0].title.endswith("compressed again as JPEG of quality 72")


def test_constants_are_computed_where_rounding_hides_them(tmp_path: Path) -> None:
    """A dull picture: rounding to whole levels takes more of it than the fit may leave of a bright one."""
    from dataclasses import replace

    from PIL import ImageEnhance

    from playbooks.drills.drill import Dose
    from playbooks.image_drift.drills import _ALL

    (drill,) = (one for one in _ALL if one.id == "image.not-normalised")
    dull = replace(drill, take=lambda n: ImageEnhance.Contrast(photograph(n)).enhance(0.25))
    first = diagnose(dull.start(Dose(1, 0), tmp_path, lambda said: None), "image-drift", argv=()).findings[0]
    assert first.id == "image.normalize-constants"
    assert "mean [0.430, 0.410, 0.390] and deviation [0.310, 0.280, 0.350]" in first.title


@pytest.mark.parametrize("strength", [0, 1])
def test_torch_may_overshoot_where_pil_clips(strength: int, tmp_path: Path) -> None:
    """Blocks of pure black and white: torch's resize, which does not clip between its passes, is 15 levels away from PIL."""
    from dataclasses import replace

    from playbooks.drills.drill import Dose
    from playbooks.image_drift.drills import _ALL
    from playbooks.image_drift.explain import BENIGN, explain
    from playbooks.image_drift.probe import FOLDER, read_probe

    blocks = np.random.default_rng(0).choice(np.array([0, 255], np.uint8), (61, 37)).repeat(7, 0).repeat(7, 1)
    (drill,) = (one for one in _ALL if one.id == "image.well")
    sharp = replace(drill, take=lambda n: Image.fromarray(blocks).convert("RGB"))
    run = sharp.start(Dose(strength, 0), tmp_path, lambda said: None)
    reading = explain(read_probe(run.path / FOLDER / "0"), (), ())
    assert reading.largest is not None and reading.largest > 5 * BENIGN and reading.nearest < 0.6
    assert diagnose(run, "image-drift", argv=()).verdict == "healthy"


def test_a_drill_that_makes_no_fault_is_refused(tmp_path: Path) -> None:
    from playbooks.drills.drill import Dose
    from playbooks.image_drift import other_engines
    from playbooks.image_drift.drills import PictureDrill

    with pytest.raises(ValueError, match="makes no fault"):
        PictureDrill("image.none", "image.decoder", "", other_engines.well).start(Dose(1, 1), tmp_path, lambda said: None)


def test_a_pixtral_server_counts_the_ends_of_rows(server: Any, model: Path) -> None:
    from playbooks.image_drift.asked import run_of_endpoint

    (model / "preprocessor_config.json").write_text(
        json.dumps({"image_processor_type": "PixtralImageProcessor", "size": {"longest_edge": 1024}})
    )
    run = run_of_endpoint(server(seeing, lambda height, width: height // 16 * (width // 16 + 1)), model, root=model.parent / "runs")
    assert not diagnose(run, "image-drift", argv=()).findings


def test_a_server_that_counts_no_tokens_is_told_so(server: Any, model: Path) -> None:
    from playbooks.image_drift.asked import run_of_endpoint

    with pytest.raises(BadAnswer, match="does not count tokens"):
        run_of_endpoint(server(seeing, lambda height, width: None), model, root=model.parent / "runs")
    assert not list((model.parent / "runs").glob("*/run.json"))


def drilled(name: str, strength: int, tmp_path: Path) -> Any:
    from playbooks.drills.drill import Dose
    from playbooks.drills.session import run_drill

    (drill,) = (one for one in DRILLS if one.id == name)
    return run_drill("image-drift", drill, Dose(strength, 5), 1, False, lambda said: None)


@pytest.mark.parametrize(("name", "strength"), [("image.well-turned", 1), ("image.wrong-key", 1)])
def test_drills_are_named_on_a_copy_without_labels(name: str, strength: int, tmp_path: Path) -> None:
    made = drilled(name, strength, tmp_path)
    assert made.correct and made.unlabelled, made


@pytest.mark.slow
@pytest.mark.parametrize("strength", [0, 1])
@pytest.mark.parametrize("name", [one.id for one in DRILLS])
def test_every_drill(name: str, strength: int, tmp_path: Path) -> None:
    made = drilled(name, strength, tmp_path)
    assert made.correct and made.unlabelled, made

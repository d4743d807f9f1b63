"""MoonViT: hidden states, features, logits and served answers equal those of others, for K2.5 and K3."""

from __future__ import annotations

import base64
import io
import json
import shutil
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from PIL import Image

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from probes.checkpoint import Checkpoint  # noqa: E402
from runtime.arch import read_arch  # noqa: E402
from runtime.images import ImageSettings, preprocess  # noqa: E402
from runtime.launcher import start_server  # noqa: E402
from runtime.local import LocalSequence  # noqa: E402
from runtime.mesh import Mesh  # noqa: E402
from runtime.model import MoeModel  # noqa: E402
from runtime.serve_config import ServeConfig  # noqa: E402
from runtime.server.api import build_prompts  # noqa: E402
from runtime.validation.multimodal import examine_multimodal  # noqa: E402
from runtime.validation.subject import open_subject  # noqa: E402
from traces.errors import CheckpointError  # noqa: E402

IMAGE, START, END = 300, 302, 303
GRIDS = {
    "one image": [(1, 6, 10)],
    "the size of the learned grid": [(1, 6, 6)],
    "several images": [(1, 4, 8), (1, 2, 6), (1, 2, 6), (1, 10, 4)],
    "clips": [(3, 4, 6), (1, 2, 2), (4, 2, 8)],
}
FEATURES = 1e-5  # relative L2, float32
LOGITS = 1e-4


def load(path: Path, dtype: Any = torch.float32) -> MoeModel:
    checkpoint = Checkpoint.open(path)
    return MoeModel.load(checkpoint, read_arch(checkpoint.config), Mesh.alone(), dtype=dtype)


def distance(ours: Any, theirs: Any) -> float:
    """Relative L2."""
    return float((ours - theirs).norm() / theirs.norm())


def patches(grids: list[tuple[int, int, int]], seed: int = 5) -> Any:
    count = sum(t * h * w for t, h, w in grids)
    return torch.rand(count, 3, 14, 14, generator=torch.Generator().manual_seed(seed)) * 2 - 1


@pytest.fixture(scope="module")
def k25(families, tmp_path_factory) -> tuple[MoeModel, Any, Path]:
    """Ours, transformers', and the folder."""
    import seeing_kimi

    path = tmp_path_factory.mktemp("kimi_k25_seeing")
    theirs = seeing_kimi.kimi_k25(path)
    return load(path), theirs, path


@pytest.fixture(scope="module")
def k3(families, tmp_path_factory) -> tuple[MoeModel, Any, Any]:
    """Ours, the reference of the text and that of the tower."""
    import seeing_kimi

    path = tmp_path_factory.mktemp("kimi_k3_seeing")
    text, tower = seeing_kimi.kimi_k3(path)
    return load(path), text, tower


@pytest.mark.parametrize("grids", GRIDS.values(), ids=GRIDS)
def test_k25_hidden_states_and_features_equal_transformers(k25, grids, record_property):
    ours, theirs, _ = k25
    pixels = patches(grids)
    with torch.no_grad():
        out = theirs.model.get_image_features(pixels, torch.tensor(grids), return_dict=True)
    features, side = ours.encode_images(pixels, grids)
    errors = distance(ours.tower.blocks(pixels, grids), out.last_hidden_state), distance(features, torch.cat(out.pooler_output))
    record_property("relative_l2", errors)
    assert max(errors) < FEATURES and side == []
    assert features.shape == (sum(h * w // 4 for _, h, w in grids), 64)


@pytest.mark.parametrize("grids", GRIDS.values(), ids=GRIDS)
def test_k3_hidden_states_and_features_equal_the_composed_tower(k3, grids, record_property):
    ours, _, tower = k3
    pixels = patches(grids)
    hidden, expected = tower(pixels, grids)
    errors = distance(ours.tower.blocks(pixels, grids), hidden), distance(ours.encode_images(pixels, grids)[0], expected)
    record_property("relative_l2", errors)
    assert max(errors) < FEATURES


@pytest.mark.parametrize("model", ["k25", "k3"])
def test_an_image_does_not_depend_on_its_company(model, request):
    ours, grids = request.getfixturevalue(model)[0], GRIDS["several images"]
    pixels = patches(grids)
    together = ours.encode_images(pixels, grids)[0]
    parts = pixels.split([t * h * w for t, h, w in grids])
    alone = [ours.encode_images(part, [grid])[0] for part, grid in zip(parts, grids, strict=True)]
    assert distance(torch.cat(alone), together) < 1e-6


def test_bfloat16_stays_near(k25):
    ours, grids = k25[0], GRIDS["several images"]
    exact, half = (model.encode_images(patches(grids), grids)[0].float() for model in (ours, load(k25[2], torch.bfloat16)))
    assert distance(half, exact) < 0.05


@pytest.mark.parametrize(
    ("grid", "says"), [((5, 2, 2), "5 frames: MoonViT has positions for 4"), ((1, 3, 2), "3 x 2 patches, of which 2 x 2 make a token")]
)
def test_grids_that_cannot_be_read_are_refused(k25, grid, says):
    with pytest.raises(ValueError, match=says):
        k25[0].encode_images(patches([grid]), [grid])


def prompt(grids: list[tuple[int, int, int]]) -> list[int]:
    rng = np.random.default_rng(3)
    ids = rng.integers(0, 290, 5).tolist()
    for _, h, w in grids:
        ids += [START, *[IMAGE] * (h * w // 4), END, *rng.integers(0, 290, 3).tolist()]
    return ids


def logits(model: MoeModel, ids: list[int], pixels: Any, grids: list[tuple[int, int, int]], step: int) -> Any:
    """[T, V], `step` tokens at a time: an image may be cut."""
    features, rows = model.encode_images(pixels, grids)[0], torch.tensor(ids) == IMAGE
    before, sequence, found = torch.cat((torch.zeros(1, dtype=torch.int64), rows.cumsum(0))), LocalSequence(model, len(ids)), []
    for first in range(0, len(ids), step):
        part = slice(first, min(first + step, len(ids)))
        seen = features[before[part.start] : before[part.stop]]
        found.append(sequence.feed(ids[part], image_rows=rows[part].nonzero().flatten(), image_embeds=seen))
    return torch.cat(found)


@pytest.mark.parametrize("step", [1000, 7])
def test_k25_logits_of_a_prompt_with_images_equal_transformers(k25, step, record_property):
    ours, theirs, _ = k25
    grids = GRIDS["several images"]
    ids, pixels = prompt(grids), patches(grids)
    with torch.no_grad():
        expected = theirs(input_ids=torch.tensor([ids]), pixel_values=pixels, image_grid_thw=torch.tensor(grids)).logits[0]
        blind = theirs(input_ids=torch.tensor([ids]), pixel_values=0 * pixels, image_grid_thw=torch.tensor(grids)).logits[0]
    error = distance(logits(ours, ids, pixels, grids, step), expected)
    record_property("relative_l2", error)
    assert error < LOGITS < 100 * LOGITS < distance(blind, expected)


@pytest.mark.parametrize("step", [1000, 7])
def test_k3_logits_of_a_prompt_with_images_equal_the_composed_reference(k3, step, record_property):
    ours, text, tower = k3
    grids = GRIDS["several images"]
    ids, pixels = prompt(grids), patches(grids)
    embeds = text.embed(ids)
    embeds[torch.tensor(ids) == IMAGE] = tower(pixels, grids)[1]
    expected = text.logits(ids, embeds)
    noise = torch.randn(embeds.shape, generator=torch.Generator().manual_seed(0)) * torch.finfo(torch.float32).eps
    rounded = distance(text.logits(ids, embeds * (1 + noise)), expected)  # delta attention amplifies it: see test_family_parity.py
    error = distance(logits(ours, ids, pixels, grids, step), expected)
    record_property("relative_l2", (error, rounded))
    assert error < max(LOGITS, 5 * rounded) < 1e-2 < distance(text.logits(ids), expected)


def test_validation_compares_pictures_with_transformers(k25):
    judged = open_subject(k25[2], torch.float32, "cpu", False, None, 0, 64)
    judged.outside = k25[1]
    checks = examine_multimodal(judged)
    assert [check.outcome for check in checks] == ["pass"], checks[0].detail


def picture(size: tuple[int, int], seed: int) -> Image.Image:
    return Image.fromarray(np.random.default_rng(seed).integers(0, 256, (*size, 3), dtype=np.uint8))


def asked(pictures: list[Image.Image], **settings: Any) -> dict[str, Any]:
    content: list[dict[str, Any]] = [{"type": "text", "text": "w5 w17"}]
    for one in pictures:
        file = io.BytesIO()
        one.save(file, "PNG")
        uri = "data:image/png;base64," + base64.b64encode(file.getvalue()).decode()
        content += [{"type": "image_url", "image_url": {"url": uri}}, {"type": "text", "text": "w44"}]
    return {"model": "kimi", "messages": [{"role": "user", "content": content}], "temperature": 0, "ignore_eos": True, **settings}


@pytest.fixture(scope="module")
def server(k25, tmp_path_factory):
    """Two lanes: the second gets its embeddings from the first."""
    small = {"max_tokens_per_step": 16, "max_sequences": 4, "block_size": 8}
    config = ServeConfig(model=str(k25[2]), name="kimi", tp=2, port=0, run_root=str(tmp_path_factory.mktemp("runs")), **small)
    with start_server(config) as running:
        yield running


def test_served_pictures_are_answered_as_transformers_does(k25, server, record_property):
    """Greedy tokens and their log-probabilities, the prompt in chunks that cut the pictures."""
    _, theirs, path = k25
    pictures = [picture((56, 84), 1), picture((100, 40), 2)]
    answer = httpx.post(f"{server.url}/v1/chat/completions", json=asked(pictures, max_tokens=8, logprobs=True), timeout=60).json()
    said = answer["choices"][0]["logprobs"]["content"]

    prepared = [preprocess(one, ImageSettings.read(path)) for one in pictures]
    ids = [5, 17]
    for one, (_, (_, h, w)) in zip(pictures, prepared, strict=True):
        ids += [START, *one.size, *[IMAGE] * (h * w // 4), END, 44]
    assert answer["usage"]["prompt_tokens"] == len(ids)
    pixels, grids = torch.from_numpy(np.concatenate([one for one, _ in prepared])), torch.tensor([grid for _, grid in prepared])
    worst = 0.0
    for token in said:
        with torch.no_grad():
            out = theirs(input_ids=torch.tensor([ids]), pixel_values=pixels, image_grid_thw=grids).logits[0, -1].log_softmax(-1)
        ids.append(int(out.argmax()))
        worst = max(worst, abs(float(out.max()) - token["logprob"]))
        assert token["token"] == f"w{ids[-1]}"
    record_property("logprob", worst)
    assert len(said) == 8 and worst < 1e-3


def test_pictures_reach_the_answer_and_videos_are_refused(server):
    url = f"{server.url}/v1/chat/completions"
    found = [httpx.post(url, json=asked([picture((56, 56), seed)], max_tokens=1, logprobs=True), timeout=60).json() for seed in (1, 2, 1)]
    chances = [one["choices"][0]["logprobs"]["content"][0]["logprob"] for one in found]
    assert chances[0] == pytest.approx(chances[2], abs=1e-5) and abs(chances[0] - chances[1]) > 1e-3
    clip = {"role": "user", "content": [{"type": "video_url", "video_url": {"url": "data:video/mp4;base64,AAAA"}}]}
    refused = httpx.post(url, json=asked([]) | {"messages": [clip]}, timeout=60)
    assert refused.status_code == 400 and "'video_url'; text and image_url are supported" in refused.text


@pytest.mark.parametrize(
    ("prepared", "says"),
    [
        ({"image_processor_type": "Qwen2VLImageProcessor"}, "pictures prepared for qwen"),
        ({"image_processor_type": "Kimi_K25ImageProcessor", "patch_size": 16}, "with patch 16, the tower of config.json reads patch 14"),
    ],
)
def test_pictures_prepared_for_another_tower_are_refused_before_serving(k25, tmp_path, prepared, says):
    folder = tmp_path / "model"
    shutil.copytree(k25[2], folder)
    (folder / "preprocessor_config.json").write_text(json.dumps(prepared))
    with pytest.raises(CheckpointError, match=says):
        build_prompts(ServeConfig(model=str(folder), port=0), k25[0].arch)

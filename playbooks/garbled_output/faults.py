"""What is done to a checkpoint folder, for a drill: real files are edited. `strength` 0 is the weaker of two, `seed` chooses the place."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from torch import Tensor

from playbooks.drills.drill import Dose
from playbooks.garbled_output.bases import edit_config, edit_tensors
from probes.checkpoint import INDEX, Checkpoint

OTHERS_TEMPLATE = (
    "{% for m in messages %}{{ '<|start_header_id|>' + m.role + '<|end_header_id|>\\n\\n' + m.content + '<|eot_id|>' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}{% endif %}"
)
ENDLESS = "{% for m in messages %}{{ '<|im_start|>' + m.role + '\\n' + m.content + '<|im_end|>\\n' }}{% endfor %}"


def template(folder: Path, dose: Dose) -> None:
    """Another model's; or, stronger, none, or one that forgets the assistant's header."""
    path = folder / "chat_template.jinja"
    if dose.strength == 0:
        path.write_text((OTHERS_TEMPLATE, ENDLESS)[dose.seed % 2])
    else:
        path.unlink()


def double_bos(folder: Path, dose: Dose) -> None:
    """The template writes its first token once more; or twice more."""
    path = folder / "chat_template.jinja"
    path.write_text("{{ '<|im_start|>' }}" * (dose.strength + 1) + path.read_text())


def stop_set(folder: Path, dose: Dose) -> None:
    """Another token ends an answer; or several others, which do not help."""
    for name in ("config.json", "generation_config.json"):
        edit_config(folder, name, eos_token_id=999 if dose.strength == 0 else [999, 1000 + dose.seed])
    edit_config(folder, "tokenizer_config.json", eos_token="<|endoftext|>")


def sampling(folder: Path, dose: Dose) -> None:
    edit_config(folder, "generation_config.json", do_sample=True, temperature=(2.0, 5.0)[dose.strength] + dose.seed)


def outside_ids(folder: Path, dose: Dose) -> None:
    """Added tokens behind the last row of the embedding."""
    path = folder / "tokenizer.json"
    document = json.loads(path.read_text())
    for number in range((1, 20)[dose.strength]):
        row = {"id": 1024 + dose.seed + number, "content": f"<|extra_{number}|>", "special": True, "single_word": False}
        document["added_tokens"].append({**row, "lstrip": False, "rstrip": False, "normalized": False})
    path.write_text(json.dumps(document))
    missing = range(1005, 1024 + dose.seed)
    core = json.loads(path.read_text())
    held = set(core["model"]["vocab"].values()) | {one["id"] for one in core["added_tokens"]}
    core["model"]["vocab"].update({f"<unused{i}>": i for i in missing if i not in held})
    path.write_text(json.dumps(core))


def missing(folder: Path, dose: Dose) -> None:
    """One tensor is gone from index and shard; or a whole shard from the folder."""
    files = sorted(folder.glob("*.safetensors"))
    if dose.strength == 1:
        files[dose.seed % 6].unlink()
        return
    index = json.loads((folder / INDEX).read_text())
    names = sorted(name for name in index["weight_map"] if "down_proj" in name or "o_proj" in name)
    name = names[dose.seed % len(names)]
    from safetensors.torch import load_file, save_file

    path = folder / index["weight_map"].pop(name)
    tensors = load_file(path)
    tensors.pop(name)
    save_file(tensors, path, {"format": "pt"})
    (folder / INDEX).write_text(json.dumps(index))


def zero_tail(folder: Path, dose: Dose) -> None:
    """The end of a file is zeros; its size is right."""
    path = sorted(folder.glob("*.safetensors"))[1 + dose.seed]
    size = path.stat().st_size
    cut = int(size * (0.9, 0.6)[dose.strength])
    with path.open("r+b") as stream:
        stream.truncate(cut)
        stream.truncate(size)


def scaled_expert(folder: Path, dose: Dose) -> None:
    """One expert of one layer answers 3, or 50, times too much."""
    layers, experts = _sizes(folder)
    layer, expert, factor = dose.seed % layers, (5 * dose.seed + 1) % experts, (3.0, 50.0)[dose.strength]

    def change(name: str, tensor: Tensor) -> Tensor | None:
        if name.endswith(_numbered(layer, expert, "w2")):
            return tensor * factor
        if not name.endswith(f"layers.{layer}.mlp.experts.down_proj"):
            return None
        return torch.cat((tensor[:expert], tensor[expert : expert + 1] * factor, tensor[expert + 1 :]))

    edit_tensors(folder, change)


def exchanged_experts(folder: Path, dose: Dose) -> None:
    """Two experts, or four, stand in each other's places in one layer."""
    layers, experts = _sizes(folder)
    order = list(range(experts))
    for pair in range(1 + dose.strength):
        a, b = (2 * pair + dose.seed) % experts, (2 * pair + dose.seed + 7) % experts
        order[a], order[b] = order[b], order[a]
    _reorder(folder, dose.seed % layers, order, router=False)


def renumbered_experts(folder: Path, dose: Dose) -> None:
    """The experts of all layers in another order, and the router's rows with them: another routing table, the same answers."""
    layers, experts = _sizes(folder)
    for layer in range(layers):
        _reorder(folder, layer, [(i + 3 + dose.seed) % experts for i in range(experts)], router=True)


def other_router(folder: Path, dose: Dose) -> None:
    """Every token goes to other experts; where all are alike, no answer changes."""
    edit_tensors(folder, lambda name, tensor: -tensor if name.endswith("gate.weight") else None)


def swapped_halves(folder: Path, dose: Dose) -> None:
    """Gate and up of the experts of one layer, or of all, are exchanged."""
    layers, _ = _sizes(folder)
    wanted = [dose.seed % layers] if dose.strength == 0 else list(range(layers))
    held = _held(folder)

    def change(name: str, tensor: Tensor) -> Tensor | None:
        if not any(f"layers.{layer}." in name for layer in wanted):
            return None
        if name.endswith((".w1.weight", ".w3.weight")):
            return held[name.replace(".w1.", ".w0.").replace(".w3.", ".w1.").replace(".w0.", ".w3.")]
        return torch.cat(tensor.chunk(2, 1)[::-1], 1) if name.endswith("mlp.experts.gate_up_proj") else None

    edit_tensors(folder, change)


def halves_apart(folder: Path, dose: Dose) -> None:
    """gpt-oss keeps gate and up in turns; here, in one layer or in all, all gates stand before all ups, biases with them."""
    layers, _ = _sizes(folder)
    wanted = [dose.seed % layers] if dose.strength == 0 else list(range(layers))

    def change(name: str, tensor: Tensor) -> Tensor | None:
        if not any(f"layers.{layer}.mlp.experts.gate_up_proj" in name for layer in wanted):
            return None
        return torch.cat((tensor[..., ::2], tensor[..., 1::2]), -1)  # the last dimension is the output's

    edit_tensors(folder, change)


def window(folder: Path, dose: Dose) -> None:
    """A window, says the config of a model that sees everything."""
    edit_config(folder, sliding_window=(64, 24)[dose.strength])


def windows_exchanged(folder: Path, dose: Dose) -> None:
    """Layers with a window see everything, and the others have it."""
    kinds = json.loads((folder / "config.json").read_text())["layer_types"]
    other = {"sliding_attention": "full_attention", "full_attention": "sliding_attention"}
    edit_config(folder, layer_types=[other[kind] for kind in kinds])


def _sizes(folder: Path) -> tuple[int, int]:
    """Layers and experts, as the config says."""
    config = json.loads((folder / "config.json").read_text())
    config = config.get("text_config", config)
    return config["num_hidden_layers"], config.get("num_experts") or config["num_local_experts"]


def _held(folder: Path) -> dict[str, Tensor]:
    from safetensors.torch import load_file

    return {name: tensor for path in sorted(folder.glob("*.safetensors")) for name, tensor in load_file(path).items()}


def _numbered(layer: int, expert: int, part: str = "") -> str:
    """How Mixtral names what belongs to one expert."""
    return f"layers.{layer}.block_sparse_moe.experts.{expert}.{part + '.weight' if part else ''}"


def _reorder(folder: Path, layer: int, order: list[int], router: bool) -> None:
    """In the place of expert i stands expert order[i]; with `router`, its rows likewise."""
    held = _held(folder)

    def change(name: str, tensor: Tensor) -> Tensor | None:
        if f"layers.{layer}.mlp.experts." in name:
            return tensor[order]
        for place, expert in enumerate(order):
            if _numbered(layer, place) in name:
                return held[name.replace(_numbered(layer, place), _numbered(layer, expert))]
        own = f"layers.{layer}.mlp.router.", f"layers.{layer}.block_sparse_moe.gate."
        return tensor[order] if router and any(part in name for part in own) else None

    edit_tensors(folder, change)


def norm_epsilon(folder: Path, dose: Dose) -> None:
    """Ten, or a hundred, times the 1e-6 of the bases."""
    edit_config(folder, rms_norm_eps=(1e-5, 1e-4)[dose.strength])


def rope_base(folder: Path, dose: Dose) -> None:
    edit_config(folder, rope_theta=(1e5, 1e4)[dose.strength])


def rope_layout(folder: Path, dose: Dose) -> None:
    edit_config(folder, rope_interleave=False)


def scaling(folder: Path, dose: Dose) -> None:
    """The factor is missing, or squared."""
    edit_config(folder, routed_scaling_factor=(1.0, 6.25)[dose.strength])


def renormalise(folder: Path, dose: Dose) -> None:
    edit_config(folder, norm_topk_prob=False)


def unread_bias(folder: Path, dose: Dose) -> None:
    """The config knows nothing of the biases that the weights have."""
    edit_config(folder, attention_bias=False)


def tied(folder: Path, dose: Dose) -> None:
    """Tied, says the config of a model with a head of its own; at the top, or everywhere."""
    config = json.loads((folder / "config.json").read_text())
    config["tie_word_embeddings"] = True
    if dose.strength == 1:
        config["text_config"]["tie_word_embeddings"] = True
    (folder / "config.json").write_text(json.dumps(config))


def scales_unwritten(folder: Path, dose: Dose) -> None:
    """All scales of the experts of a layer, or of the model, are ones."""
    names = Checkpoint.open(folder).tensors
    chosen = {n for n in names if n.endswith("_scale_inv") and ".experts." in n and (dose.strength or f"layers.{1 + dose.seed % 2}." in n)}
    edit_tensors(folder, lambda name, tensor: torch.ones_like(tensor) if name in chosen else None)


def loud_experts(folder: Path, dose: Dose) -> None:
    """Gates and ups so large that their product leaves float16; float32 computes it well. Siblings alike: no tensor stands out."""
    factor = (200.0, 600.0)[dose.strength]
    edit_tensors(folder, lambda name, tensor: tensor * factor if name.endswith(("gate_proj.weight", "up_proj.weight")) else None)


def same_rendering(folder: Path, dose: Dose) -> None:
    """A comment in the template: another hash, the same prompt."""
    path = folder / "chat_template.jinja"
    path.write_text("{#- revised -#}\n" + path.read_text())


def resharded(folder: Path, dose: Dose) -> None:
    """One file instead of nine, and zeros behind the last token that is in use."""
    from safetensors.torch import load_file, save_file

    files = sorted(folder.glob("*.safetensors"))
    tensors = {name: tensor for path in files for name, tensor in load_file(path).items()}
    for name, tensor in tensors.items():
        if name.endswith("embed_tokens.weight"):
            tensors[name] = torch.cat((tensor[:1005], torch.zeros_like(tensor[1005:])))
    for path in files:
        path.unlink()
    (folder / INDEX).unlink()
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})


def untouched(folder: Path, dose: Dose) -> None:
    """Nothing."""

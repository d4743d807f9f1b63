"""What `quantization_config` says about the weights as they are stored."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from runtime.arch import QuantSpec
from runtime.config_reader import ConfigReader
from traces.errors import CheckpointError

HINT = "supported: fp8 in blocks, mxfp4, compressed-tensors mxfp4-pack-quantized and pack-quantized int4; or bfloat16, float16, float32"


def read_quant(config: Mapping[str, Any], architecture: str) -> QuantSpec | None:
    """None for plain floats. CheckpointError for a format without a decoder, or two settings that contradict each other."""
    inner = config.get("text_config")
    found = [c.get("quantization_config") for c in (config, inner) if isinstance(c, dict) and c.get("quantization_config")]
    if not found:
        return None
    if len(found) == 2 and found[0] != found[1]:
        hint = "remove the one that does not belong to the weights"
        raise CheckpointError("config.json has two quantization_config that differ, one at the top and one in text_config", hint)
    method = found[0].get("quant_method", "unknown") if isinstance(found[0], dict) else found[0]
    quant = ConfigReader(found[0] if isinstance(found[0], dict) else {}, "quantization_config.")
    reader = {"fp8": _fp8, "mxfp4": lambda _: QuantSpec("mxfp4"), "compressed-tensors": _compressed}.get(str(method))
    spec = reader(quant) if reader is not None else None
    if spec is None:
        raise CheckpointError(f"{architecture} is quantised ({_describe(method, quant)}): there is no decoder for that", HINT)
    return spec


def _describe(method: Any, quant: ConfigReader) -> str:
    return ", ".join(str(part) for part in (method, quant.raw.get("fmt"), quant.raw.get("format")) if part)


def _fp8(quant: ConfigReader) -> QuantSpec | None:
    """float8_e4m3 with a scale per block (DeepSeek-V3); a scale per tensor or channel has no decoder here."""
    block = quant.raw.get("weight_block_size")
    if quant.text("fmt", default="e4m3") != "e4m3" or not isinstance(block, list) or len(block) != 2:
        return None
    return QuantSpec("fp8_block", block=(int(block[0]), int(block[1])))


def _compressed(quant: ConfigReader) -> QuantSpec | None:
    """compressed-tensors: weights packed to 4 bits, symmetric, one scale per group of a row."""
    kind = quant.raw.get("format")
    weights = [g.get("weights") or {} for g in (quant.raw.get("config_groups") or {}).values() if isinstance(g, dict)]
    groups = {int(w["group_size"]) for w in weights if w.get("group_size")} or {32}
    plain = all(w.get("symmetric", True) and w.get("strategy", "group") == "group" and not w.get("actorder") for w in weights)
    four = all(w.get("num_bits", 4) == 4 for w in weights)
    if len(groups) != 1 or not plain or not four:
        return None
    if kind == "mxfp4-pack-quantized" and groups == {32}:
        return QuantSpec("mxfp4")
    return QuantSpec("int4", group=groups.pop()) if kind == "pack-quantized" and weights else None

"""What `quantization_config` says of the weights as they are stored: the one reader of it, for plan, loader, inventory and verification."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from runtime.arch import QuantSpec
from traces.errors import CheckpointError

Scheme = Literal["fp8-block", "int4-packed", "mxfp4-packed", "mxfp4-blocks"]
MX_GROUP = 32  # values that share a scale in every MX format (OCP Microscaling Formats 1.0, section 5.2)
HINT = "supported: fp8 in blocks, mxfp4, compressed-tensors mxfp4-pack-quantized and pack-quantized int4; or bfloat16, float16, float32"
_KINDS: dict[Scheme, Literal["fp8_block", "int4", "mxfp4"]] = {
    "fp8-block": "fp8_block",
    "int4-packed": "int4",
    "mxfp4-packed": "mxfp4",
    "mxfp4-blocks": "mxfp4",
}


@dataclass(frozen=True, slots=True)
class Quantisation:
    """A published scheme, and the modules it leaves alone. `mxfp4-blocks` is gpt-oss' form of MXFP4, `-packed` compressed-tensors'."""

    scheme: Scheme
    block: tuple[int, int] = (128, 128)  # rows and columns that share a scale: fp8-block
    group: int = MX_GROUP  # values of a row that share a scale: the packed schemes
    ignored: tuple[str, ...] | None = None  # patterns of module names; None: it does not say

    @property
    def spec(self) -> QuantSpec:
        """What decoding needs of it."""
        return QuantSpec(_KINDS[self.scheme], self.block, self.group)


def read_quantisation(config: Mapping[str, Any]) -> Quantisation | None:
    """From the top of a config.json or its text_config; None for plain floats.

    CheckpointError for a scheme without a decoder here, and for two settings that contradict each other.
    """
    inner = config.get("text_config")
    found = [c["quantization_config"] for c in (config, inner) if isinstance(c, Mapping) and c.get("quantization_config")]
    if not found:
        return None
    if len(found) == 2 and found[0] != found[1]:
        hint = "remove the one that does not belong to the weights"
        raise CheckpointError("config.json has two quantization_config that differ, one at the top and one in text_config", hint)
    setting: Mapping[str, Any] = found[0] if isinstance(found[0], Mapping) else {"quant_method": found[0]}
    reader = _READERS.get(str(setting.get("quant_method")))
    quantisation = reader(setting) if reader is not None else None
    if quantisation is None:
        named = ", ".join(str(part) for part in (setting.get("quant_method", "unknown"), setting.get("fmt"), setting.get("format")) if part)
        raise CheckpointError(f"the weights are quantised ({named}) in a way for which there is no decoder", HINT)
    return quantisation


def _fp8(setting: Mapping[str, Any]) -> Quantisation | None:
    """float8_e4m3 with a scale per block (DeepSeek-V3); a scale per tensor or channel has no decoder here."""
    block = setting.get("weight_block_size")
    if setting.get("fmt", "e4m3") != "e4m3" or not isinstance(block, list) or len(block) != 2:
        return None
    if not all(isinstance(size, int) and size > 0 for size in block):
        raise CheckpointError(f"quantization_config.weight_block_size is {block}, two positive integers are needed")
    return Quantisation("fp8-block", block=(block[0], block[1]), ignored=_patterns(setting, "modules_to_not_convert"))


def _mxfp4(setting: Mapping[str, Any]) -> Quantisation:
    return Quantisation("mxfp4-blocks")


def _compressed(setting: Mapping[str, Any]) -> Quantisation | None:
    """compressed-tensors: weights packed to 4 bits, symmetric, one scale per group of a row."""
    groups = setting.get("config_groups") or {}
    weights = [group.get("weights") or {} for group in groups.values() if isinstance(group, Mapping)]
    sizes = {weight.get("group_size") or MX_GROUP for weight in weights}
    plain = all(w.get("symmetric", True) and w.get("strategy", "group") == "group" and not w.get("actorder") for w in weights)
    if not plain or any(weight.get("num_bits", 4) != 4 for weight in weights):
        return None
    ignored = _patterns(setting, "ignore")
    if setting.get("format") == "mxfp4-pack-quantized" and sizes <= {MX_GROUP}:
        return Quantisation("mxfp4-packed", ignored=ignored)
    if setting.get("format") == "pack-quantized" and len(sizes) == 1 and isinstance(size := sizes.pop(), int):
        return Quantisation("int4-packed", group=size, ignored=ignored)
    return None


def _patterns(setting: Mapping[str, Any], key: str) -> tuple[str, ...] | None:
    value = setting.get(key)
    return tuple(str(item) for item in value) if isinstance(value, list) and value else None


_READERS: dict[str, Callable[[Mapping[str, Any]], Quantisation | None]] = {
    "fp8": _fp8,
    "mxfp4": _mxfp4,
    "compressed-tensors": _compressed,
}

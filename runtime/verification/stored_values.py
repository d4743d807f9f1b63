"""Tensors of an examined checkpoint by name, read by the safetensors library; fp8 in blocks is decoded. Without our plan or loader."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from runtime.quantisation import read_quantisation
from runtime.verification.header_file import Entry
from runtime.verification.headers import Examined
from traces.errors import UsageError

if TYPE_CHECKING:
    from torch import Tensor

PLAIN = ("F32", "BF16", "F16")
FP8 = "F8_E4M3"


@dataclass
class StoredValues:
    """The values of one checkpoint. Nothing is kept between calls."""

    found: Examined

    @cached_property
    def entries(self) -> dict[str, Entry]:
        return {name: entry for file in self.found.files for name, entry in file.entries.items()}

    @cached_property
    def _files(self) -> dict[str, str]:
        return {name: file.file for file in self.found.files for name in file.entries}

    def readable(self, name: str) -> bool:
        """Whether its values are known here: plain floats, or float8 with a scale for every block."""
        entry = self.entries.get(name)
        if entry is None or entry.dtype in PLAIN:
            return entry is not None
        return entry.dtype == FP8 and f"{name}_scale_inv" in self.entries and self._block is not None

    def used(self, name: str) -> tuple[str, ...]:
        """The stored tensors that the values of `name` come from."""
        return (name, f"{name}_scale_inv") if self.entries[name].dtype == FP8 else (name,)

    def read(self, name: str) -> Tensor:
        """Values of a readable tensor; decoded ones are float32. UsageError when it is missing."""
        values = self._raw(name)
        if self.entries[name].dtype != FP8 or self._block is None:
            return values
        rows, columns = self._block
        scales = self._raw(f"{name}_scale_inv").float().repeat_interleave(rows, -2).repeat_interleave(columns, -1)
        return values.float() * scales[..., : values.shape[-2], : values.shape[-1]]

    @cached_property
    def _block(self) -> tuple[int, int] | None:
        how = read_quantisation(self.found.config)
        return how.block if how is not None and how.scheme == "fp8-block" else None

    def _raw(self, name: str) -> Tensor:
        from safetensors import safe_open

        if name not in self._files:
            raise UsageError(f"tensor {name} is missing", "verify the headers first: `workbench verify MODEL`")
        with safe_open(self.found.root / self._files[name], framework="pt") as stream:
            tensor: Any = stream.get_tensor(name)
        return tensor  # type: ignore[no-any-return]

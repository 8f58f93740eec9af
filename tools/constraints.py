"""Rewrite constraints.txt: install all extras but `cuda` into a new environment and pin what was chosen.

Called by `make constraints`. The pins are what CI and `make demo` install; users of the package are
bound by the ranges in pyproject.toml alone. torch is pinned first, by hand, because it decides the rest.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
import venv
from pathlib import Path

ROOT = Path(__file__).parents[1]
TORCH = "torch==2.13.0"
# A CUDA build of torch brings these; they follow torch's own pins and are absent from a CPU build.
FOLLOWS_TORCH = re.compile(r"(nvidia|cuda|triton)\b")


def main() -> None:
    """Resolve, freeze, write."""
    with tempfile.TemporaryDirectory() as folder:
        venv.create(folder, with_pip=True)
        python = Path(folder) / "bin" / "python"
        extras = f"{ROOT}[dev,docs]"
        subprocess.run([python, "-m", "pip", "install", "--quiet", TORCH, "--editable", extras], check=True)
        frozen = subprocess.run(
            [python, "-m", "pip", "freeze", "--all", "--exclude", "pip", "--exclude-editable"],
            check=True,
            capture_output=True,
            text=True,
        ).stdout
    # "+cpu" and the like name a build; the pin must hold for every build of that version.
    pins = [line.partition("+")[0] for line in frozen.splitlines() if not FOLLOWS_TORCH.match(line)]
    header = "# Written by `make constraints`. Exact versions that install and pass the tests together.\n"
    (ROOT / "constraints.txt").write_text(header + "\n".join(pins) + "\n", encoding="utf-8")
    print(f"{len(pins)} pins for Python {sys.version_info.major}.{sys.version_info.minor}")


if __name__ == "__main__":
    main()

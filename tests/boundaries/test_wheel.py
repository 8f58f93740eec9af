"""The wheel holds what the source tree holds, and works without it.

The wheel is built, unpacked into an empty folder, and put in front of everything else on the path of a
fresh interpreter that runs elsewhere; so a file that the build leaves out is missed here and not by a user.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import ostinato

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]

IMPORT_ALL = """
import importlib, pathlib, pkgutil, sys
import ostinato
here = pathlib.Path(ostinato.__file__).parent
assert here == pathlib.Path(sys.argv[1]) / "ostinato", f"not the wheel: {here}"
optional = {"triton", "flashinfer"}
for module in pkgutil.walk_packages(ostinato.__path__, "ostinato."):
    try:
        importlib.import_module(module.name)
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in optional:
            raise
print(ostinato.__version__)
"""


@pytest.fixture(scope="module")
def unpacked(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    build = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(folder), str(ROOT)]
    subprocess.run(build, check=True, capture_output=True)
    (wheel,) = folder.glob("ostinato-*.whl")
    site = folder / "site"
    install = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(site), str(wheel)]
    subprocess.run(install, check=True, capture_output=True)
    return site


def files_below(folder: Path) -> set[str]:
    found = (path.relative_to(folder) for path in folder.rglob("*") if path.is_file())
    return {str(path) for path in found if "__pycache__" not in path.parts}


def test_no_file_is_left_out(unpacked: Path) -> None:
    assert files_below(unpacked / "ostinato") == files_below(ROOT / "src" / "ostinato")


def test_every_module_imports_without_the_source_tree(unpacked: Path, tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": str(unpacked)}
    done = subprocess.run(
        [sys.executable, "-c", IMPORT_ALL, str(unpacked)],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip().endswith(ostinato.__version__)


def test_the_metadata_is_right(unpacked: Path) -> None:
    (metadata,) = unpacked.glob("ostinato-*.dist-info/METADATA")
    text = metadata.read_text(encoding="utf-8")
    assert f"\nVersion: {ostinato.__version__}\n" in text
    assert "\nLicense-Expression: Apache-2.0\n" in text
    assert (metadata.parent / "licenses" / "LICENSE").is_file()
    scripts = (metadata.parent / "entry_points.txt").read_text(encoding="utf-8")
    assert "ostinato = ostinato.cli.app:main" in scripts

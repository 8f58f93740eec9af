"""`ostinato --help` answers at once, because it imports no command and hence no torch."""

from __future__ import annotations

import subprocess
import sys
import time

HELP = "from ostinato.cli.app import main; main(['--help'])"


def test_help_imports_no_torch_and_no_command() -> None:
    done = subprocess.run([sys.executable, "-X", "importtime", "-c", HELP], capture_output=True, text=True, check=True)
    imported = {line.rpartition("|")[2].strip() for line in done.stderr.splitlines()}
    assert "typer" in imported
    assert "torch" not in imported
    ours = {name for name in imported if name.startswith("ostinato.cli.")}
    assert ours == {"ostinato.cli.app", "ostinato.cli.commands", "ostinato.cli.watched_output"}


def test_help_is_quick() -> None:
    # About 0.2 s on an idle machine; the bound leaves room for a busy one and still catches torch (2 s and more).
    times = []
    for _ in range(3):
        start = time.perf_counter()
        subprocess.run([sys.executable, "-c", HELP], capture_output=True, check=True)
        times.append(time.perf_counter() - start)
    assert min(times) < 1.5

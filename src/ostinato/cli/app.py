"""The entry point of the ``ostinato`` command: run it, and turn failures into messages and exit codes.

Exit codes: 0 success; 1 an unexpected failure (a traceback: please report it); 2 the user can mend it
(bad usage, an `OstinatoError`, an extra that is not installed, an output that cannot be written); 130
interrupted; 141 the reader of a pipe has gone.
With ``--json`` an error is one JSON object on standard output, ``{"error": {...}}``; else it is two or
three lines on standard error. ``OSTINATO_TRACEBACK=1`` shows the traceback as well.
Only the standard library is imported here, so that a missing extra is a message and not a traceback.
"""

from __future__ import annotations

import json
import os
import sys
import traceback
from collections.abc import Sequence
from contextlib import suppress
from typing import NoReturn

from ostinato.cli.watched_output import watched_output
from ostinato.errors import ConfigError, OstinatoError

__all__ = ["main"]

EXIT_USER_ERROR = 2
EXIT_INTERRUPTED = 130  # 128 + SIGINT, as shells count
EXIT_CLOSED_PIPE = 141  # 128 + SIGPIPE: what shells show of a program that a closed pipe ends


def main(args: Sequence[str] | None = None) -> NoReturn:
    """Run the command line ``args`` (default: ``sys.argv[1:]``) and exit the process."""
    argv = list(sys.argv[1:] if args is None else args)
    with watched_output() as output:
        try:
            _run(argv)
        except (SystemExit, OSError) as end:
            output.flush()
            failure = output.failure()
            if failure is None or (isinstance(end, OSError) and end is not failure[1]):
                raise
            _fail_of_output(*failure)


def _run(argv: list[str]) -> NoReturn:
    try:
        from ostinato.cli.commands import build_command

        build_command().main(args=argv, prog_name="ostinato")
    except OstinatoError as error:
        _fail(error, as_json="--json" in argv)
    except ModuleNotFoundError as error:
        missing = (error.name or "").partition(".")[0]
        if missing in {"", "ostinato"}:
            raise  # a defect of ours, not a missing extra
        _fail(_missing_extra(missing), as_json="--json" in argv)
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        sys.exit(EXIT_INTERRUPTED)
    sys.exit(0)


def _missing_extra(package: str) -> ConfigError:
    extra = "cli" if package in {"typer", "rich"} else "engine"
    return ConfigError(f"the package {package!r} is not installed", fix=f"pip install 'ostinato[{extra}]'")


def _fail(error: OstinatoError, *, as_json: bool) -> NoReturn:
    if os.environ.get("OSTINATO_TRACEBACK") == "1":
        traceback.print_exc()
    if as_json:
        print(json.dumps({"error": error.to_dict()}))
    else:
        print(_render(error), file=sys.stderr)
    sys.exit(EXIT_USER_ERROR)


def _fail_of_output(name: str, error: OSError) -> NoReturn:
    if isinstance(error, BrokenPipeError):
        sys.exit(EXIT_CLOSED_PIPE)
    failure = ConfigError(f"{name} cannot be written: {error.strerror}", fix="send it to a file or pipe that takes it")
    with suppress(OSError):  # standard error may be the same full disk
        _fail(failure, as_json=False)
    sys.exit(EXIT_USER_ERROR)


def _render(error: OstinatoError) -> str:
    lines = [f"error {error.code}: {error.message}"]
    if error.context:
        lines.append("  where: " + ", ".join(f"{name}={value}" for name, value in error.context.items()))
    if error.fix:
        lines.append(f"  fix: {error.fix}")
    return "\n".join(lines)

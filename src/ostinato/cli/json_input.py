"""JSON files that a user names on the command line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from ostinato.errors import ConfigError

__all__ = ["read_json"]


def read_json(path: Path) -> Any:
    """The contents of ``path``.

    Raises:
        ConfigError: it cannot be read, or is not JSON.
    """
    try:
        return json.loads(path.read_text(encoding="utf-8-sig"))
    except (OSError, UnicodeError) as error:
        raise ConfigError(f"{path} cannot be read: {error}", fix="name a readable JSON file") from error
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{path} is not JSON: {error}", fix="mend the file") from error

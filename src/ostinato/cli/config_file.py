"""``--config FILE``: settings of an engine, as JSON.

``ostinato plan --out`` writes such a file. A setting that an option of the command gives too is refused: which of the
two would count? Loads no torch.
"""

from __future__ import annotations

import dataclasses
import difflib
import re
from collections.abc import Collection
from pathlib import Path
from typing import Any

from ostinato.cli.json_input import read_json
from ostinato.engine.config import EngineConfig
from ostinato.errors import ConfigError

__all__ = ["engine_config", "with_config_file"]

_TUPLES = ("decode_sizes", "token_sizes")


def engine_config(path: Path | None, **options: Any) -> EngineConfig:
    """The settings that a command's ``options`` give, and those of the file at ``path``; see `with_config_file`."""
    return with_config_file(EngineConfig(**options), path, options=options)


def with_config_file(config: EngineConfig, path: Path | None, *, options: Collection[str]) -> EngineConfig:
    """``config`` with the settings of the file at ``path``; None leaves it as it is.

    Args:
        options: fields that options of the command give.

    Raises:
        ConfigError: the file cannot be read or is no object of settings; a name is unknown or among ``options``; or
            a value is not valid. Then nothing of it is applied.
    """
    if path is None:
        return config
    document = read_json(path)
    if not isinstance(document, dict):
        raise ConfigError(f"{path} is no object of settings", fix='write {"decode_sizes": [1, 2, 4]}')
    known = [f.name for f in dataclasses.fields(EngineConfig)]
    valid = [name for name in known if name not in options]
    settings: dict[str, Any] = {}
    for name, value in document.items():
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1)
            raise ConfigError(
                f"{path} has an unknown setting {name!r}",
                fix=f"did you mean {near[0]!r}?" if near else f"valid: {', '.join(valid)}",
            )
        if name in options:
            raise ConfigError(
                f"{path} sets {name!r}, for which there is an option", fix=f"give --{name.replace('_', '-')} instead"
            )
        settings[name] = tuple(value) if name in _TUPLES and isinstance(value, list) else value
    try:
        return dataclasses.replace(config, **settings)
    except ConfigError as error:
        for name in settings:  # quoted it is the file's word; else it would be named by an option that was not given
            error.message, error.fix = (
                re.sub(rf"(?<!['\w]){name}(?!['\w])", repr(name), text) for text in (error.message, error.fix)
            )
        raise

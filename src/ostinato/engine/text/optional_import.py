"""Import a library of the ``engine`` extra at its first use, or say how to install it.

`import ostinato.engine` must work without these libraries, so each is imported inside the function
that needs it. Called by `text` and `weights`.
"""

from __future__ import annotations

import importlib
from types import ModuleType

from ostinato.errors import EngineError

INSTALL_HINT = "pip install 'ostinato[engine]'"


def require(module: str, purpose: str) -> ModuleType:
    """Return the module called ``module`` (dotted names work).

    Args:
        module: name to import.
        purpose: what needs it, as a phrase that follows "needed to".

    Raises:
        EngineError: the library is not installed.
    """
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        missing = error.name or module
        raise EngineError(f"the library {missing!r} is needed to {purpose}", fix=INSTALL_HINT) from error

"""``python -m ostinato``: the same as the ``ostinato`` command."""

from __future__ import annotations

from ostinato.cli.app import main

__all__: list[str] = []

if __name__ == "__main__":
    main()

"""Draw files of evidence: ``python benchmarks/draw.py results/decode_*.json --out pictures/``; needs matplotlib.

Rows of several files of one bench and model come into one picture, if the files are named together with ``+``:
``startup_a.json+startup_b.json``; then each row says which file it is of, by its setting of ``capture``.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from ostinato.bench.plots import draw


def read(names: str) -> dict[str, object]:
    """One document of all files in ``names``."""
    documents = [json.loads(Path(name).read_text()) for name in names.split("+")]
    first = documents[0]
    if len(documents) > 1:
        for document in documents:
            for row in document["rows"]:
                row["capture"] = document["config"][row["mode"]]["capture"]
        first["rows"] = [row for document in documents for row in document["rows"]]
    return first


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("files", nargs="+")
    parser.add_argument("--out", type=Path, required=True)
    given = parser.parse_args()
    given.out.mkdir(parents=True, exist_ok=True)
    for names in given.files:
        document = read(names)
        path = given.out / f"{Path(names.split('+')[0]).stem}.png"
        draw(document, path)
        print(path)


if __name__ == "__main__":
    main()

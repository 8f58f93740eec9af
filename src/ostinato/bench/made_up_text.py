"""The tokenizer of a model that has none: without text in them, times would leave out a part of every answer.

Called by `scenario`, for the scenarios that time whole answers.
"""

from __future__ import annotations

import tempfile
from importlib.util import find_spec
from pathlib import Path

from ostinato.bench.evidence import Evidence
from ostinato.bench.model_costs import Target
from ostinato.engine.text import Tokenizer
from ostinato.testing.made_up_tokenizer import write_made_up_tokenizer

__all__ = ["made_up_tokenizer"]


def made_up_tokenizer(target: Target, evidence: Evidence) -> Tokenizer | None:
    """A made-up tokenizer with a token for every id of the model; None if the model has its own, or none can be read.

    ``evidence`` says which of the three it was.
    """
    if target.has_tokenizer:
        evidence.note("text: by the model's own tokenizer; every answer is made text in the time that is measured")
        return None
    if find_spec("tokenizers") is None:
        evidence.skip("text", "tokenizers is not installed; answers end as token ids (pip install 'ostinato[engine]')")
        return None
    with tempfile.TemporaryDirectory() as folder:
        write_made_up_tokenizer(Path(folder), target.vocab_size)
        tokenizer = Tokenizer.from_directory(folder)
    tokenizer.prepare()  # as with weights from files
    evidence.note(
        f"text: the model has no tokenizer, so a made-up byte-level one of {target.vocab_size} tokens (some letters "
        "each, a few of them parts of characters); every answer is made text in the time that is measured, end tokens "
        "are looked for and ignored. Peers give token ids"
    )
    return tokenizer

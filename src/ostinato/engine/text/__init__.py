"""Text in and out: tokenizer, chat template, incremental detokenizer, stop strings, one request's text.

Knows nothing of models or devices. The loop and the server call it; `weights` uses its lazy import.
"""

from ostinato.engine.text.detokenizer import IncrementalDetokenizer
from ostinato.engine.text.stop_strings import StopStrings
from ostinato.engine.text.text_state import TextState
from ostinato.engine.text.tokenizer import Tokenizer

__all__ = ["IncrementalDetokenizer", "StopStrings", "TextState", "Tokenizer"]

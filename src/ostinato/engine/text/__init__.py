"""Text in and out: tokenizer, chat template, incremental detokenizers, stop strings, one request's text.

Knows nothing of models or devices. The loop and the server call it; `weights` uses its lazy import.
"""

from ostinato.engine.text.byte_level import ByteLevelDetokenizer, byte_letters
from ostinato.engine.text.detokenizer import Detokenizer
from ostinato.engine.text.stop_strings import StopStrings
from ostinato.engine.text.text_state import TextState
from ostinato.engine.text.tokenizer import Tokenizer
from ostinato.engine.text.window_detokenizer import WindowDetokenizer

__all__ = [
    "ByteLevelDetokenizer",
    "Detokenizer",
    "StopStrings",
    "TextState",
    "Tokenizer",
    "WindowDetokenizer",
    "byte_letters",
]

"""Text to token ids and back, for one checkpoint folder.

A thin layer over a ``tokenizers.Tokenizer`` that adds what a folder says around it: end ids, begin
token, chat template. Leaves text that grows to its `detokenizer`. Safe to share between threads.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ostinato.engine.text.byte_level import ByteLevelDetokenizer, TokenPieces
from ostinato.engine.text.chat_template import ChatTemplate
from ostinato.engine.text.detokenizer import Detokenizer
from ostinato.engine.text.optional_import import require
from ostinato.engine.text.special_tokens import SpecialTokens, read_special_tokens
from ostinato.engine.text.window_detokenizer import WindowDetokenizer
from ostinato.errors import CheckpointError, RequestError

if TYPE_CHECKING:
    import tokenizers


class Tokenizer:
    """The tokenizer of one checkpoint. Make it with `from_directory`."""

    def __init__(
        self, backend: tokenizers.Tokenizer, *, special: SpecialTokens, chat_template: ChatTemplate | None = None
    ) -> None:
        self._backend = backend
        self._special = special
        self._chat_template = chat_template
        self._token_texts: dict[int, str] = {}
        # Now, so that no first answer waits for it.
        self._pieces = {skip: self._make_pieces(skip) for skip in (True, False)} if self._is_byte_level() else None

    @classmethod
    def from_directory(cls, directory: str | Path) -> Tokenizer:
        """Load the tokenizer of a folder that has a ``tokenizer.json``.

        Raises:
            CheckpointError: the file is missing or cannot be parsed.
        """
        directory = Path(directory)
        file = directory / "tokenizer.json"
        if not file.is_file():
            raise CheckpointError(
                f"{directory} has no tokenizer.json",
                fix="copy the model's tokenizer.json there, or save it with a fast tokenizer's save_pretrained()",
            )
        library = require("tokenizers", "read tokenizer.json")
        try:
            backend = library.Tokenizer.from_file(str(file))
        except Exception as error:  # the library raises bare Exception for every kind of bad file
            raise CheckpointError(f"cannot read {file}: {error}", fix="download or copy this file again") from error
        # A saved file may carry truncation or padding of the training run; a prompt must be encoded whole.
        backend.no_truncation()
        backend.no_padding()
        return cls(
            backend,
            special=read_special_tokens(directory, backend.token_to_id),
            chat_template=ChatTemplate.from_directory(directory),
        )

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        """Token ids of ``text``. Special tokens written in the text become their single ids.

        Args:
            add_special_tokens: add what the checkpoint puts around a plain prompt (a begin token, say).
                Switch it off for a rendered chat template, which already holds them.
        """
        return list(self._backend.encode(text, add_special_tokens=add_special_tokens).ids)

    def decode(self, token_ids: Sequence[int], skip_special: bool = True) -> str:
        """Text of ``token_ids``; bytes that are not UTF-8 become U+FFFD and unknown ids nothing."""
        token_ids = list(token_ids)  # the look for a negative id would use an iterator up
        if self._pieces is not None and min(token_ids, default=0) >= 0:  # else the library says what is wrong
            return self._pieces[skip_special].text(token_ids)
        return str(self._backend.decode(token_ids, skip_special_tokens=skip_special))

    def detokenizer(self, *, skip_special: bool = True) -> Detokenizer:
        """A new one, for one growing list of tokens: by look-up if the tokenizer is byte-level, else by windows."""
        if self._pieces is None:
            return WindowDetokenizer(self, skip_special=skip_special)
        return ByteLevelDetokenizer(self._pieces[skip_special])

    def prepare(self) -> None:
        """Find the text of all tokens now, where it is looked up, so that no answer waits for that."""
        if self._pieces is not None:
            self._pieces[True].find_all()

    def token_text(self, token_id: int) -> str:
        """Text of one token on its own, special or not. Each is decoded once: streams ask for it at every step."""
        text = self._token_texts.get(token_id)
        if text is None:
            text = self._token_texts[token_id] = self.decode([token_id], skip_special=False)
        return text

    def token_to_id(self, token: str) -> int | None:
        """Id of a vocabulary entry, as written in ``tokenizer.json``; None when it has none."""
        token_id: int | None = self._backend.token_to_id(token)
        return token_id

    @property
    def vocab_size(self) -> int:
        """Number of tokens, added ones included. A model's logits may be padded to more."""
        return int(self._backend.get_vocab_size(with_added_tokens=True))

    @property
    def eos_token_ids(self) -> frozenset[int]:
        """Every id that ends a generation."""
        return self._special.eos_token_ids

    @property
    def bos_token_id(self) -> int | None:
        """Id of the begin-of-text token, when the checkpoint has one."""
        return self._special.bos_token_id

    @cached_property
    def special_token_ids(self) -> frozenset[int]:
        """Ids that ``decode(skip_special=True)`` leaves out."""
        added = self._backend.get_added_tokens_decoder()
        return frozenset(token_id for token_id, token in added.items() if token.special)

    @property
    def has_chat_template(self) -> bool:
        """Whether `apply_chat_template` can work."""
        return self._chat_template is not None

    def apply_chat_template(
        self, messages: Sequence[Mapping[str, Any]], add_generation_prompt: bool = True, **variables: Any
    ) -> str:
        """Prompt text of a chat. Encode it with ``add_special_tokens=False``, or use `encode_chat`.

        Args:
            messages: ``{"role": ..., "content": ...}`` objects, oldest first.
            add_generation_prompt: end with the header of the assistant's turn.
            variables: further names for the template (``tools``, ``enable_thinking``...).

        Raises:
            RequestError: the model has no template, or it refused the messages.
        """
        if self._chat_template is None:
            raise RequestError(
                "this model has no chat template",
                fix="send a plain prompt, or put a chat_template.jinja in the model's folder",
            )
        names = {**self._special.texts, "add_generation_prompt": add_generation_prompt, **variables}
        return self._chat_template.render(messages, names)

    def encode_chat(
        self, messages: Sequence[Mapping[str, Any]], add_generation_prompt: bool = True, **variables: Any
    ) -> list[int]:
        """Token ids of a chat; never adds a second begin token to the template's own."""
        text = self.apply_chat_template(messages, add_generation_prompt, **variables)
        return self.encode(text, add_special_tokens=False)

    def _is_byte_level(self) -> bool:
        """Whether text is the tokens' bytes, joined: nothing else must stand in the decoder."""
        decoders = require("tokenizers.decoders", "know how tokens are decoded")
        return isinstance(self._backend.decoder, decoders.ByteLevel)

    def _make_pieces(self, skip_special: bool) -> TokenPieces:
        return TokenPieces(self._backend.id_to_token, self.vocab_size, self.special_token_ids if skip_special else ())

"""Turn chat messages into one prompt text with the template that the checkpoint ships.

A template is a program written by whoever made the checkpoint, so it runs in jinja2's immutable
sandbox. The names offered to it (``raise_exception``, ``strftime_now``, ``tojson``, the
``generation`` tag) are those that published templates expect. Called by the tokenizer.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, NoReturn

from ostinato.engine.text.json_file import read_json_object_if_present
from ostinato.engine.text.optional_import import require
from ostinato.errors import CheckpointError, RequestError

_DEFAULT = "default"
_WITH_TOOLS = "tool_use"


class ChatTemplate:
    """The named templates of one checkpoint; most have only ``"default"``."""

    def __init__(self, sources: Mapping[str, str]) -> None:
        self._sources = dict(sources)
        self._compiled: dict[str, Any] = {}

    @classmethod
    def from_directory(cls, directory: Path) -> ChatTemplate | None:
        """The templates of a folder, or None where it has none.

        A ``chat_template.jinja`` file wins over ``tokenizer_config.json``, where the template is a
        text or a list of ``{"name": ..., "template": ...}``.
        """
        sources: dict[str, str] = {}
        written = read_json_object_if_present(directory / "tokenizer_config.json").get("chat_template")
        if isinstance(written, str):
            sources[_DEFAULT] = written
        elif isinstance(written, list):
            for item in written:
                if isinstance(item, dict) and isinstance(item.get("template"), str):
                    sources[str(item.get("name", _DEFAULT))] = item["template"]
        file = directory / "chat_template.jinja"
        if file.is_file():
            sources[_DEFAULT] = file.read_text(encoding="utf-8")
        return cls(sources) if sources else None

    def render(self, messages: Sequence[Mapping[str, Any]], variables: Mapping[str, Any]) -> str:
        """Return the prompt text.

        Args:
            messages: ``{"role": ..., "content": ...}`` objects, oldest first.
            variables: further names for the template (``add_generation_prompt``, ``bos_token``, ``tools``...).

        Raises:
            RequestError: the template refused these messages.
            CheckpointError: the template itself is broken.
        """
        template = self._compile(self._choose(has_tools=bool(variables.get("tools"))))
        try:
            return str(template.render(messages=list(messages), **variables))
        except Exception as error:  # a template is a program: it may raise anything
            raise RequestError(
                f"the model's chat template refused these messages: {error}",
                fix="send messages with 'role' and 'content' in an order that the model accepts",
            ) from error

    def _choose(self, *, has_tools: bool) -> str:
        if has_tools and _WITH_TOOLS in self._sources:
            return _WITH_TOOLS
        return _DEFAULT if _DEFAULT in self._sources else next(iter(self._sources))

    def _compile(self, name: str) -> Any:
        if name not in self._compiled:
            jinja2 = require("jinja2", "apply a chat template")
            try:
                self._compiled[name] = _environment().from_string(self._sources[name])
            except jinja2.TemplateError as error:
                raise CheckpointError(
                    f"the chat template {name!r} does not compile: {error}",
                    fix="repair chat_template in tokenizer_config.json or chat_template.jinja",
                ) from error
        return self._compiled[name]


def _environment() -> Any:
    sandbox = require("jinja2.sandbox", "apply a chat template")
    from ostinato.engine.text.generation_tag import GenerationTag

    env = sandbox.ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols", GenerationTag]
    )
    env.globals["raise_exception"] = _raise_exception
    env.globals["strftime_now"] = lambda pattern: datetime.now().strftime(pattern)
    # jinja2's own tojson escapes <, > and & for HTML, which would change the prompt.
    env.filters["tojson"] = _to_json
    return env


def _raise_exception(message: str) -> NoReturn:
    raise require("jinja2", "apply a chat template").TemplateError(message)


def _to_json(value: Any, indent: int | None = None, **options: Any) -> str:
    return json.dumps(value, ensure_ascii=False, indent=indent, **options)

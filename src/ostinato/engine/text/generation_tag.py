"""The ``{% generation %}`` tag of chat templates.

Training code uses it to mark the assistant's words; a prompt only needs what is inside. Imports jinja2
at the top, so `chat_template` imports this module when it first compiles a template, not before.
"""

from __future__ import annotations

from jinja2 import nodes
from jinja2.ext import Extension
from jinja2.parser import Parser


class GenerationTag(Extension):
    """Shows the body of ``{% generation %}...{% endgeneration %}`` and nothing else."""

    tags = {"generation"}  # noqa: RUF012 - jinja2 declares it as a plain attribute

    def parse(self, parser: Parser) -> list[nodes.Node]:
        """Called by jinja2 at the tag; returns the body's nodes."""
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)

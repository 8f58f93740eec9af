"""Chat templates: where they are found, what they may use, and what happens when they fail."""

from __future__ import annotations

import pytest

from ostinato.engine.text import Tokenizer
from ostinato.errors import CheckpointError, RequestError

USER = [{"role": "user", "content": "hello"}]


def tokenizer_with(make_folder, template, **config) -> Tokenizer:
    return Tokenizer.from_directory(make_folder(tokenizer_config={"chat_template": template, **config}))


def test_the_prompt_of_a_chat(byte_level: Tokenizer) -> None:
    assert byte_level.has_chat_template
    expected = "<|im_start|>user\nhello<|im_end|>\n"
    assert byte_level.apply_chat_template(USER, add_generation_prompt=False) == expected
    assert byte_level.apply_chat_template(USER) == expected + "<|im_start|>assistant\n"


def test_encode_chat_adds_no_second_begin_token(make_folder, chat_template_text: str) -> None:
    from tokenizers import processors

    tokenizer = tokenizer_with(make_folder, chat_template_text, bos_token="<|im_start|>")
    start = tokenizer.token_to_id("<|im_start|>")
    tokenizer._backend.post_processor = processors.TemplateProcessing(
        single="<|im_start|> $A", special_tokens=[("<|im_start|>", start)]
    )
    assert tokenizer.encode("hello")[0] == start
    assert tokenizer.encode_chat(USER, add_generation_prompt=False).count(start) == 1


def test_a_list_of_templates_is_chosen_from_by_tools(make_folder) -> None:
    both = [{"name": "default", "template": "plain"}, {"name": "tool_use", "template": "{{ tools | tojson }}"}]
    tokenizer = tokenizer_with(make_folder, both)
    assert tokenizer.apply_chat_template(USER) == "plain"
    assert tokenizer.apply_chat_template(USER, tools=[{"name": "<é>"}]) == '[{"name": "<é>"}]'


def test_the_jinja_file_wins(make_folder) -> None:
    folder = make_folder(tokenizer_config={"chat_template": "old"})
    (folder / "chat_template.jinja").write_text("new", encoding="utf-8")
    assert Tokenizer.from_directory(folder).apply_chat_template(USER) == "new"


def test_special_tokens_and_further_variables_are_offered(make_folder) -> None:
    tokenizer = tokenizer_with(make_folder, "{{ eos_token }}{{ enable_thinking }}", eos_token={"content": "<|im_end|>"})
    assert tokenizer.apply_chat_template(USER, enable_thinking=False) == "<|im_end|>False"


def test_what_published_templates_use(make_folder) -> None:
    template = (
        "{%- for m in messages %}\n    {% generation %}{{ m.content }}{% endgeneration %}\n"
        "    {% break %}\n{% endfor %}{{ strftime_now('%Y') | length }}"
    )
    tokenizer = tokenizer_with(make_folder, template)
    assert tokenizer.apply_chat_template([*USER, {"role": "user", "content": "unseen"}]).split() == ["hello4"]


def test_a_refusal_of_the_template_is_a_request_error(make_folder) -> None:
    tokenizer = tokenizer_with(make_folder, "{{ raise_exception('roles must alternate') }}")
    with pytest.raises(RequestError, match="roles must alternate"):
        tokenizer.apply_chat_template(USER)


def test_messages_that_break_the_template_are_a_request_error(make_folder) -> None:
    tokenizer = tokenizer_with(make_folder, "{{ messages[0]['content'] + 'x' }}")
    with pytest.raises(RequestError, match="refused these messages"):
        tokenizer.apply_chat_template([{"role": "user", "content": None}])


@pytest.mark.parametrize("attack", ["{{ ''.__class__.__mro__ }}", "{{ messages.append(1) }}"])
def test_a_template_cannot_leave_the_sandbox(make_folder, attack: str) -> None:
    tokenizer = tokenizer_with(make_folder, attack)
    with pytest.raises(RequestError):
        tokenizer.apply_chat_template(USER)


def test_a_broken_template_is_a_checkpoint_error(make_folder) -> None:
    tokenizer = tokenizer_with(make_folder, "{% for %}")
    with pytest.raises(CheckpointError, match="does not compile"):
        tokenizer.apply_chat_template(USER)


def test_a_model_without_template_says_so(make_folder) -> None:
    tokenizer = Tokenizer.from_directory(make_folder())
    assert not tokenizer.has_chat_template
    with pytest.raises(RequestError, match="no chat template"):
        tokenizer.apply_chat_template(USER)

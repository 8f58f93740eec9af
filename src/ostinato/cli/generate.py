"""``ostinato generate``: prompts in, texts out, and how the steps were run.

Settings are checked before anything is loaded. A prompt that cannot be answered leaves the others
unharmed and makes the exit code 2. Torch and the engine are imported when the command runs.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ostinato.cli.answers import Answer
from ostinato.cli.config_file import engine_config
from ostinato.cli.options import (
    Attention,
    Capture,
    Compile,
    ConfigFile,
    Costs,
    DecodeSizes,
    Device,
    Dispatch,
    Dtype,
    Executables,
    Json,
    KvTokens,
    LoadFormat,
    MaxModelLen,
    MaxNumReqs,
    Mode,
    Model,
    OnMoved,
    Partition,
    TokenSizes,
    sizes_given,
)
from ostinato.cli.output import print_json, print_prompt, print_text
from ostinato.cli.prompts import has_chat_template, prompt_error, read_prompts
from ostinato.engine.before_torch import head_start
from ostinato.engine.config import DEFAULT_MODEL, EngineConfig
from ostinato.engine.request import SamplingParams

if TYPE_CHECKING:
    from ostinato import LLM
    from ostinato.engine.weights.progress import ProgressReporter

__all__ = ["generate"]

SAMPLING_PANEL = "Sampling"
EXIT_BAD_PROMPT = 2
_FEW_PROMPTS = 16


def generate(
    prompt: Annotated[list[str] | None, typer.Option("--prompt", "-p", help="A prompt; may be repeated.")] = None,
    prompt_file: Annotated[
        str | None, typer.Option(help="File with a prompt on each line; - is standard input.")
    ] = None,
    chat: Annotated[
        bool | None,
        typer.Option(
            "--chat/--no-chat",
            help="Send prompts as chat messages, or as plain text. Default: chat if the model has a chat template.",
        ),
    ] = None,
    as_json: Json = False,
    max_tokens: Annotated[int, typer.Option(help="Most tokens to generate.", rich_help_panel=SAMPLING_PANEL)] = 64,
    temperature: Annotated[float, typer.Option(help="0 is greedy.", rich_help_panel=SAMPLING_PANEL)] = 0.0,
    seed: Annotated[int | None, typer.Option(help="Makes samples repeat.", rich_help_panel=SAMPLING_PANEL)] = None,
    top_k: Annotated[int, typer.Option(help="Most likely tokens to keep; 0: all.", rich_help_panel=SAMPLING_PANEL)] = 0,
    top_p: Annotated[float, typer.Option(help="Probability mass to keep.", rich_help_panel=SAMPLING_PANEL)] = 1.0,
    min_p: Annotated[
        float, typer.Option(help="Least share of the likeliest token.", rich_help_panel=SAMPLING_PANEL)
    ] = 0.0,
    stop: Annotated[
        list[str] | None, typer.Option(help="String that ends a text; may be repeated.", rich_help_panel=SAMPLING_PANEL)
    ] = None,
    model: Model = DEFAULT_MODEL,
    mode: Mode = "auto",
    partition: Partition = "breakable",
    compiler: Compile = "none",
    executables: Executables = "own",
    dispatch: Dispatch = "auto",
    capture: Capture = "eager",
    on_moved: OnMoved = "raise",
    config_file: ConfigFile = None,
    decode_sizes: DecodeSizes = None,
    token_sizes: TokenSizes = None,
    costs: Costs = None,
    device: Device = "auto",
    dtype: Dtype = "auto",
    load_format: LoadFormat = "auto",
    attention: Attention = "auto",
    max_model_len: MaxModelLen = None,
    max_num_reqs: MaxNumReqs = None,
    kv_tokens: KvTokens = None,
) -> None:
    """Generate text from prompts, and say how the steps were run."""
    params = SamplingParams(
        max_tokens=max_tokens,
        temperature=temperature,
        seed=seed,
        top_k=top_k,
        top_p=top_p,
        min_p=min_p,
        stop=tuple(stop or ()),
    )
    config = engine_config(
        config_file,
        model=model,
        mode=mode,
        partition=partition,
        compile=compiler,
        dispatch=dispatch,
        executables=executables,
        capture=capture,
        on_moved=on_moved,
        costs=costs,
        device=device,
        dtype=dtype,
        load_format=load_format,
        attention=attention,
        max_model_len=max_model_len,
        max_num_reqs=max_num_reqs,
        kv_tokens=kv_tokens,
        **sizes_given(decode_sizes, token_sizes),
    )
    answers, stats = _run(read_prompts(prompt or (), prompt_file), params, config, chat=chat)
    if as_json:
        print_json({"outputs": [answer.to_dict() for answer in answers], **stats})
    else:
        _print(answers, stats)
    if any(answer.error is not None for answer in answers):
        raise typer.Exit(EXIT_BAD_PROMPT)


def _run(
    prompts: Sequence[str], params: SamplingParams, config: EngineConfig, *, chat: bool | None
) -> tuple[list[Answer], dict[str, Any]]:
    """Answers in the order of ``prompts``, and the engine's stats."""
    head_start(config.device)  # before torch is imported
    from ostinato import LLM
    from ostinato.cli.progress import progress_on_stderr

    refused = {index: error for index, prompt in enumerate(prompts) if (error := prompt_error(prompt)) is not None}
    sent = [prompt for index, prompt in enumerate(prompts) if index not in refused]
    if not sent:
        raise refused[0]  # nothing to load a model for
    if config.max_num_reqs is None and config.decode_sizes is None and len(sent) <= _FEW_PROMPTS:
        # Nobody else comes: graphs for more requests would only be waited for.
        config = dataclasses.replace(config, max_num_reqs=len(sent))
    progress = progress_on_stderr()
    with LLM(config=config, progress=progress) as llm:
        ready = iter(_answer(llm, sent, params, chat=chat, progress=progress))
        stats = llm.stats()
    answers = [
        Answer.failed(prompt, refused[index]) if index in refused else next(ready)
        for index, prompt in enumerate(prompts)
    ]
    return answers, {name: stats[name] for name in ("dispatch", "graphs", "config")}


def _answer(
    llm: LLM, prompts: Sequence[str], params: SamplingParams, *, chat: bool | None, progress: ProgressReporter
) -> list[Answer]:
    from ostinato.engine.weights.progress import reporting

    as_chat = has_chat_template(llm) if chat is None else chat
    with reporting(progress, "generate", None, "prompts"):
        if as_chat:
            outputs = llm.chat([[{"role": "user", "content": prompt}] for prompt in prompts], params)
        else:
            outputs = llm.generate(_as_inputs(llm, prompts), params)
    return [
        Answer(
            prompt=prompt,
            text=output.text,
            token_ids=output.token_ids,
            finish_reason=output.finish_reason,
            error=output.error,
        )
        for prompt, output in zip(prompts, outputs, strict=True)
    ]


def _as_inputs(llm: LLM, prompts: Sequence[str]) -> list[str | Sequence[int]]:
    """The texts themselves; their bytes where made-up weights come without a tokenizer, to see the steps run."""
    if llm.tokenizer is not None or llm.config.load_format != "dummy":
        return list(prompts)
    typer.echo("this model has no tokenizer: the bytes of each prompt are its token ids", err=True)
    return [list(prompt.encode("utf-8")) for prompt in prompts]


def _print(answers: Sequence[Answer], stats: dict[str, Any]) -> None:
    from ostinato.cli.tables import dispatch_line

    for answer in answers:
        print_prompt(answer.prompt)
        print_text(_shown(answer))
    typer.echo(dispatch_line(stats))
    for number, answer in enumerate(answers, start=1):
        if answer.error is not None:
            typer.echo(f"prompt {number}: {answer.error}", err=True)


def _shown(answer: Answer) -> str:
    if answer.error is not None:
        return "(no answer)"
    return answer.text if answer.text.strip() else f"(no text; token ids {answer.token_ids})"

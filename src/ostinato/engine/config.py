"""Settings of one engine, and the pure function that turns every "auto" into a value with a reason.

`EngineConfig` is plain values, checked when it is made. `resolve_engine_config` is given what only the
machine and the checkpoint know (device kind, model length, stored dtype). Left open on purpose: `mode`, `partition`
and `compile` (the runtime resolves them against attention and device; of `partition` "auto" a file of costs decides),
`kv_tokens` (free memory decides, after the weights are loaded) and the default size ladders (runtime planning). Called
by `engine.llm`, server, CLI.
"""

from __future__ import annotations

import dataclasses
import re
from dataclasses import dataclass
from typing import Final, Literal

from ostinato.errors import ConfigError, UnknownNameError

__all__ = ["DEFAULT_MODEL", "EngineConfig", "check_fits_cache", "resolve_engine_config"]

DEFAULT_MODEL: Final = "HuggingFaceTB/SmolLM2-135M-Instruct"

_CHOICES: Final[dict[str, tuple[str, ...]]] = {
    "dtype": ("auto", "float32", "bfloat16", "float16"),
    "load_format": ("auto", "dummy"),
    "mode": ("none", "piecewise", "full", "full_decode_only", "full_and_piecewise", "auto"),
    "partition": ("breakable", "fx", "inductor", "auto"),
    "compile": ("none", "inductor"),
    "ownership": ("recycled", "owned"),
    "executables": ("own", "shared"),
    "guards": ("always", "sampled", "off"),
    "on_moved": ("raise", "recapture"),
    "capture": ("eager", "background"),
    "dispatch": ("auto", "order", "measured"),
    "attention": ("auto", "torch", "triton", "flashinfer"),
}
_LADDERS: Final[dict[str, tuple[str, ...]]] = {  # by name; `runtime.preset_within` knows their sizes
    "decode_sizes": ("vllm", "sglang", "tensorrt-llm"),
    "token_sizes": ("vllm", "sglang"),
}
_COUNTS: Final = (
    "page_size",
    "max_model_len",
    "max_num_reqs",
    "max_num_batched_tokens",
    "kv_tokens",
    "compile_max_tokens",
)
_MOST: Final = 2**31 - 1
"""Of anything that is counted but memory: positions and sizes are 32-bit integers to the kernels."""
_DEVICE: Final = re.compile(r"auto|cpu|cuda(:[0-9]{1,9})?")

_DEFAULT_SHARE: Final = 0.1
_WITHOUT_EFFECT: Final = {  # a share that nothing takes: what is expected, and what to do
    "shadow_share": ("left out without shadow_every", "set shadow_every too, or leave out shadow_share"),
    "capture_share": (
        "left out without capture='background' or on_moved='recapture'",
        "set one of the two, or leave out capture_share",
    ),
}

# Defaults by device kind: a CPU is compute-bound at small batches, a GPU wants enough rows to fill it.
_DEFAULT_MODEL_LEN: Final = {"cpu": 2048, "cuda": 8192}
_DEFAULT_NUM_REQS: Final = {"cpu": 16, "cuda": 256}
_DEFAULT_BATCHED_TOKENS: Final = {"cpu": 512, "cuda": 8192}


@dataclass(frozen=True, kw_only=True)
class EngineConfig:
    """What a user may choose about an engine.

    Attributes:
        model: hub name, local folder or file. The default is small enough to answer on a laptop.
        device: "auto", "cpu", "cuda" or "cuda:N", which must be the current device (`torch.cuda.set_device`).
        dtype: "auto" is float32 on a CPU (where bfloat16 is often slower) and the checkpoint's own on CUDA.
        load_format: "auto" reads a checkpoint; "dummy" fills weights from `seed` and reads none.
        mode: which graphs a step may replay; "auto" is resolved by the runtime.
        partition: how piecewise graphs are made; "breakable" needs no compiler. "auto" takes the one that costs least
            over all buckets, by a file of ``costs`` with tables of several, and is "breakable" without.
        compile: "inductor" compiles the work inside full graphs, and with partition "fx" the pieces.
        compile_max_tokens: full graphs of more tokens are captured uncompiled; None compiles all.
        full_mixed_max_tokens: with mode "auto" or "full_and_piecewise", mixed steps of up to so many tokens replay full
            graphs too, if attention supports it; None is 1,024 for "auto" with triton (one launch a step is what
            a short prompt's first token waits for), else 0.
        ownership: of what attention is given in piecewise graphs: "recycled" lets buckets share the memory that their
            own segments rewrite at each replay; "owned" gives each bucket of each layer its own, which was 2 GiB for
            16 layers of 2,048 with the default buckets, and which the cache needs more.
        executables: "own" gives each graph an executable; "shared" gives one to all graphs of the same topology, which
            saves device memory and makes a replay of another graph than the last one wait for an update.
        guards: whether replays look if weights and other tensors still lie where they were captured: "always" (the
            default costs a few microseconds a step), "sampled" or "off".
        on_moved: what follows when they find that one was moved, replaced or dropped: "raise" (the default) ends the
            requests of the step with that error; "recapture" runs the step eagerly, on what is there now, and captures
            its graph anew between later steps, within `capture_share` while requests run.
        shadow_every: one replayed step in so many is kept and runs eagerly too, later and between steps, once its
            tokens are delivered; a difference quarantines the key. While one waits no other is kept. 0 (the default)
            never.
        shadow_share: the share of the time that those eager runs may take while requests run; while none does, all.
        dispatch: "order" takes a full graph before a piecewise one before eager, in the smallest bucket; "measured"
            times them all at start and takes the cheapest; "auto" is "measured" where ``costs`` names a file.
        costs: JSON file of measured costs: read if it is there, written once they are measured if it is not or
            lacks a bucket.
        capture: "eager" captures all graphs before the first answer; "background" answers at once, by eager steps, and
            captures between steps, those first that the traffic so far would have gained most from.
        capture_share: with "background", or with "recapture", the share of the time that captures between steps may
            take while requests run; while none does, all of it.
        manifest: JSON file that says how the graphs of this engine did at its last start: what failed or was
            quarantined is not tried again, and "background" captures in the order of the traffic that was served.
            Written if absent; replaced when the device, the model (its configuration, its weight files), a version or
            a setting is another.
        tune_linears: on CUDA, measure before capture which kernel is fastest for linear layers of up to 128 rows, and
            keep what was found for the next start on this machine (some minutes, once); False takes what is stored, or
            the default kernels.
        overlap: launch a step before the tokens of the step before are read; None does so on CUDA, where the
            device works while the host prepares.
        shape_batches: fit steps to the captured sizes: a request may wait one step where its admission would grow
            decode just over a bucket, and long prompts are cut on buckets. Off by default: on the public trace that
            it was measured on it saved less time than requests waited.
        attention: backend name; "auto" is triton on CUDA and torch on a CPU. "flashinfer" needs CUDA, the extra
            `cuda` and a compiler (nvcc).
        page_size: tokens in a page; 16 keeps the waste below 16 tokens a request with short block tables.
        max_model_len: tokens a request may hold, prompt and output together.
        max_num_reqs: requests that may run at once.
        max_num_batched_tokens: tokens in one step; longer prompts are split into chunks.
        kv_tokens: capacity of the KV cache in tokens; None takes it from free memory.
        decode_sizes: batch sizes (requests) to capture for decode, sorted, no more than the KV cache has pages; "vllm",
            "sglang" or "tensorrt-llm" takes that engine's default ladder as far as `max_num_reqs`; None takes ours.
        token_sizes: token counts to capture for mixed steps, sorted, no more than the KV cache holds; "vllm" or
            "sglang" takes that engine's as far as `max_num_batched_tokens`; None takes ours.
        seed: for dummy weights and for requests without a seed of their own.

    Raises:
        UnknownNameError: a name is not among its choices.
        ConfigError: a number is out of range, or two settings contradict each other.
    """

    model: str = DEFAULT_MODEL
    device: str = "auto"
    dtype: str = "auto"
    load_format: str = "auto"
    mode: str = "auto"
    partition: str = "breakable"
    compile: str = "none"
    compile_max_tokens: int | None = None
    full_mixed_max_tokens: int | None = None
    ownership: str = "recycled"
    executables: str = "own"
    guards: str = "always"
    on_moved: str = "raise"
    shadow_every: int = 0
    shadow_share: float = _DEFAULT_SHARE
    dispatch: str = "auto"
    costs: str | None = None
    capture: str = "eager"
    capture_share: float = _DEFAULT_SHARE
    manifest: str | None = None
    tune_linears: bool = False
    overlap: bool | None = None
    shape_batches: bool = False
    attention: str = "auto"
    page_size: int = 16
    max_model_len: int | None = None
    max_num_reqs: int | None = None
    max_num_batched_tokens: int | None = None
    kv_tokens: int | None = None
    decode_sizes: tuple[int, ...] | str | None = None
    token_sizes: tuple[int, ...] | str | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        if not isinstance(self.model, str) or not self.model:
            raise ConfigError(
                "model must be a non-empty name or path",
                fix="give a hub name, a local folder or a file",
                field="model",
                got=repr(self.model),
            )
        if not isinstance(self.device, str) or not _DEVICE.fullmatch(self.device):
            raise UnknownNameError.of("device", str(self.device), ["auto", "cpu", "cuda", "cuda:N"])
        for name, valid in _CHOICES.items():
            if getattr(self, name) not in valid:
                raise UnknownNameError.of(name, str(getattr(self, name)), list(valid))
        if self.on_moved == "recapture" and self.guards == "off":
            _contradiction("guards", "off", "always or sampled with on_moved='recapture'", "leave out one of the two")
        for name in _COUNTS:
            value = getattr(self, name)
            if value is None and name != "page_size":
                continue
            _check_int(name, value, low=1, high=2**63 - 1 if name == "kv_tokens" else _MOST)
        if self.costs is not None and (not isinstance(self.costs, str) or not self.costs):
            message, fix = "costs must be the name of a file", "name one, or leave costs out"
            raise ConfigError(message, fix=fix, field="costs", got=repr(self.costs))
        if self.costs is not None and self.dispatch == "order":
            _contradiction("dispatch", "order", "measured, since costs names a file", "leave out costs")
        if self.overlap not in (None, True, False):
            message, fix = "overlap must be true, false or None", "leave it out: the device decides"
            raise ConfigError(message, fix=fix, field="overlap", got=repr(self.overlap))
        for name in ("capture_share", "shadow_share"):
            share = getattr(self, name)
            if isinstance(share, bool) or not isinstance(share, int | float) or not 0 <= share <= 1:
                raise ConfigError(
                    f"{name} must be from 0 to 1, got {share!r}",
                    fix="0.1 is a tenth of the time while requests run",
                    field=name,
                )
        for name, goes_with in (
            ("shadow_share", self.shadow_every != 0),
            ("capture_share", self.capture == "background" or self.on_moved == "recapture"),
        ):
            if getattr(self, name) != _DEFAULT_SHARE and not goes_with:
                _contradiction(name, getattr(self, name), *_WITHOUT_EFFECT[name])
        for name in ("shape_batches", "tune_linears"):
            if not isinstance(getattr(self, name), bool):
                message, fix = f"{name} must be true or false", f"set {name} accordingly"
                raise ConfigError(message, fix=fix, field=name, got=repr(getattr(self, name)))
        if self.full_mixed_max_tokens is not None:
            _check_int("full_mixed_max_tokens", self.full_mixed_max_tokens, low=0, high=_MOST)
        _check_int("shadow_every", self.shadow_every, low=0, high=_MOST)
        _check_int("seed", self.seed, low=0, high=2**63 - 1)
        if self.kv_tokens is not None and self.kv_tokens < self.page_size:
            _contradiction("kv_tokens", self.kv_tokens, f">= page_size ({self.page_size})", "raise kv_tokens")
        num_reqs, num_tokens = self.max_num_reqs, self.max_num_batched_tokens
        if num_reqs is not None and num_tokens is not None and num_reqs > num_tokens:
            # Every running request must be able to decode one token in a step.
            _contradiction("max_num_reqs", num_reqs, f"<= max_num_batched_tokens ({num_tokens})", "lower max_num_reqs")
        object.__setattr__(self, "decode_sizes", _sizes(self, "decode_sizes", "max_num_reqs"))
        object.__setattr__(self, "token_sizes", _sizes(self, "token_sizes", "max_num_batched_tokens"))
        if self.kv_tokens is not None:
            num_pages = -(-self.kv_tokens // self.page_size)
            for name in ("decode_sizes", "token_sizes"):
                sizes = getattr(self, name)
                if not isinstance(sizes, str):  # a ladder's name is cut instead
                    check_fits_cache(name, sizes, num_pages=num_pages, page_size=self.page_size)


def check_fits_cache(name: str, sizes: tuple[int, ...] | None, *, num_pages: int, page_size: int) -> None:
    """Refuse sizes that no step could have, since each decode needs a page and each token a place in one.

    Args:
        name: ``"decode_sizes"`` or ``"token_sizes"``.
        sizes: ascending; None fits.
        num_pages: of the KV cache, the null page not counted.
        page_size: in tokens.

    Raises:
        ConfigError: the largest does not fit.
    """
    is_decode = name == "decode_sizes"
    most = num_pages if is_decode else num_pages * page_size
    if sizes is None or sizes[-1] <= most:
        return
    needed = sizes[-1] * page_size if is_decode else sizes[-1]
    why = f"{num_pages} decodes, a page each" if is_decode else f"{most} tokens"
    raise ConfigError(
        f"{name} has {sizes[-1]}, and a KV cache of {num_pages * page_size} tokens holds {why}",
        fix=f"drop sizes above {most} from {name}, or set kv_tokens to at least {needed}",
        field=name,
        expected=f"<= {most}",
        got=sizes[-1],
    )


def resolve_engine_config(
    config: EngineConfig, device_kind: Literal["cpu", "cuda"], model_max_len: int, checkpoint_dtype: str
) -> tuple[EngineConfig, dict[str, str]]:
    """Resolve every setting that the machine or the checkpoint decides. Pure: reads no device.

    Args:
        config: what the user chose.
        device_kind: the kind of device that was found.
        model_max_len: tokens of context that the checkpoint supports.
        checkpoint_dtype: dtype name of the stored weights, such as "bfloat16".

    Returns:
        The resolved config, and for each field that changed the reason for its value.

    Raises:
        ConfigError: `device_kind` contradicts `config.device`, or a limit exceeds the model's.
    """
    if device_kind not in _DEFAULT_MODEL_LEN:
        raise UnknownNameError.of("device kind", device_kind, sorted(_DEFAULT_MODEL_LEN))
    if config.device != "auto" and config.device.split(":")[0] != device_kind:
        _contradiction("device", config.device, f"a {device_kind} device, the kind that was found", "choose another")
    if config.max_model_len is not None and config.max_model_len > model_max_len:
        _contradiction("max_model_len", config.max_model_len, f"<= the model's {model_max_len}", "lower max_model_len")
    changes: dict[str, object] = {}
    reasons: dict[str, str] = {}

    def choose(name: str, value: object, reason: str) -> None:
        changes[name] = value
        reasons[name] = f"{value}: {reason}"

    if config.device == "auto":
        choose("device", device_kind, f"a {device_kind} device was found")
    if config.dtype == "auto":
        choose("dtype", *_resolve_dtype(device_kind, checkpoint_dtype))
    if config.attention == "auto":
        backend = "triton" if device_kind == "cuda" else "torch"
        choose("attention", backend, f"the default backend on {device_kind}")
    if config.dispatch == "auto":
        why = "no costs are named" if config.costs is None else "by the costs in a file"
        choose("dispatch", "order" if config.costs is None else "measured", why)
    if config.compile_max_tokens is not None and config.compile == "none":
        choose("compile_max_tokens", None, "nothing is compiled")
    if config.full_mixed_max_tokens and config.mode not in ("auto", "full_and_piecewise"):
        choose("full_mixed_max_tokens", 0, f"mode {config.mode} has no full graphs of small mixed steps beside others")
    if config.full_mixed_max_tokens is None:
        is_short = config.mode == "auto" and changes.get("attention", config.attention) == "triton"
        why = (
            "attention runs in any graph, and a launch a step is cheapest" if is_short else "only for auto with triton"
        )
        choose("full_mixed_max_tokens", 1024 if is_short else 0, why)
    if config.tune_linears and device_kind != "cuda":
        choose("tune_linears", False, "only CUDA has kernels to choose from")
    if config.overlap is None:
        why = "the device works while the host prepares" if device_kind == "cuda" else "host and device are one"
        choose("overlap", device_kind == "cuda", why)
    if config.max_model_len is None:
        default = _DEFAULT_MODEL_LEN[device_kind]
        reason = f"the smaller of the model's {model_max_len} and the {device_kind} default {default}"
        choose("max_model_len", min(model_max_len, default), reason)
    num_reqs, num_tokens = config.max_num_reqs, config.max_num_batched_tokens
    default_reqs, default_tokens = _DEFAULT_NUM_REQS[device_kind], _DEFAULT_BATCHED_TOKENS[device_kind]
    if num_reqs is None:
        capped = default_reqs if num_tokens is None else min(default_reqs, num_tokens)
        why = f"the {device_kind} default" if capped == default_reqs else "one token each of max_num_batched_tokens"
        choose("max_num_reqs", capped, why)
    if num_tokens is None:
        raised = default_tokens if num_reqs is None else max(default_tokens, num_reqs)
        why = f"the {device_kind} default" if raised == default_tokens else "one token for each of max_num_reqs"
        choose("max_num_batched_tokens", raised, why)
    return dataclasses.replace(config, **changes), reasons  # type: ignore[arg-type]


def _resolve_dtype(device_kind: str, checkpoint_dtype: str) -> tuple[str, str]:
    if device_kind == "cpu":
        return "float32", "the fast and exact dtype on a CPU"
    if checkpoint_dtype in _CHOICES["dtype"][1:]:
        return checkpoint_dtype, "the checkpoint's own dtype"
    return "bfloat16", f"the checkpoint's {checkpoint_dtype} is not a compute dtype here"


def _sizes(config: EngineConfig, name: str, limit_name: str) -> tuple[int, ...] | str | None:
    """A ladder's name, or the sizes sorted and without repeats, each checked against the limit when that is known."""
    given, limit = getattr(config, name), getattr(config, limit_name)
    if given is None:
        return None
    if isinstance(given, str):
        if given not in _LADDERS[name]:
            error = UnknownNameError.of(name, given, list(_LADDERS[name]))
            error.fix += ", or whole numbers from 1 on, such as 1,8,64"
            raise error
        return given
    if isinstance(given, bytes) or not hasattr(given, "__iter__"):
        message, fix = f"{name} must be a tuple of sizes", f"set {name} accordingly, such as (1, 8, 64)"
        raise ConfigError(message, fix=fix, field=name, got=repr(given))
    for size in (sizes := tuple(given)):
        _check_int(name, size, low=1, high=_MOST)
        if limit is not None and size > limit:
            _contradiction(name, size, f"<= {limit_name} ({limit})", f"drop the size or raise {limit_name}")
    if not sizes:
        _contradiction(name, "()", "at least one size", "use None for the default ladder, or mode='none'")
    return tuple(sorted(set(sizes)))


def _check_int(name: str, value: object, *, low: int, high: int) -> None:
    expected = f"an integer >= {low} and <= {high}"
    is_int = isinstance(value, int) and not isinstance(value, bool)
    if not is_int or not low <= value <= high:  # type: ignore[operator]
        message, fix = f"{name} must be {expected}, got {value!r}", f"set {name} accordingly"
        raise ConfigError(message, fix=fix, field=name, expected=expected, got=repr(value))


def _contradiction(name: str, value: object, expected: str, fix: str) -> None:
    raise ConfigError(f"{name} must be {expected}, got {value}", fix=fix, field=name, expected=expected, got=value)

"""The compiled Triton kernels on a GPU: against the torch backend, in graphs, and without later compilation."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from importlib.util import find_spec

import pytest
import torch

from ostinato.engine.attention import (
    AttentionMetadata,
    AttentionShape,
    ForwardContext,
    get_attention_backend,
    set_forward_context,
)
from ostinato.engine.kvcache import allocate_caches
from ostinato.engine.layers.mlp import silu_mul
from ostinato.engine.layers.rms_norm import RMSNorm, rms_norm
from ostinato.engine.layers.rotary import RopeConfig, RotaryTable, rotate
from ostinato.engine.models import ModelConfig, build_model

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
    pytest.mark.skipif(find_spec("triton") is None, reason="needs triton"),
]

PAGE_SIZE = 16
DEVICE = "cuda"
TOLERANCE = {torch.float32: 2e-5, torch.bfloat16: 2e-2, torch.float16: 4e-3}
HEADS = [(32, 8), (9, 3), (14, 2), (4, 4)]
F32, BF16, F16 = TOLERANCE
VARLEN_LENS = [([600, 1, 30], [600, 900, 64]), ([1, 1], [1, 500]), ([33], [1033])]
FUSED_STEPS = [  # query and context lengths, uniform query length, padded requests and rows
    (([1] * 4, [1, 2, 900, 4000]), 1, (2, 2)),
    (([1] * 40, [17 * n + 1 for n in range(40)]), 1, (0, 0)),
    (([3] * 2, [40, 333]), 3, (1, 3)),
    (([50, 1], [50, 77]), None, (1, 5)),
]


def all_of(*axes: Sequence, quick: list[tuple]):
    """Every combination; those not in ``quick`` are slow, since nearly each one compiles kernels of its own."""
    cases = list(itertools.product(*axes))
    assert all(case in cases for case in quick)
    return [pytest.param(*case, marks=() if case in quick else pytest.mark.slow) for case in cases]


class Step:
    """A random step on the GPU: float32 copies for the torch backend, and ``dtype`` ones for Triton."""

    def __init__(self, query_lens, context_lens, *, heads, head_dim, dtype, uniform=None, padded=(0, 0), max_context=0):
        padded_reqs, padded_rows = padded
        generator = torch.Generator().manual_seed(len(query_lens))
        num_heads, self.kv_heads = heads
        self.num_heads, self.head_dim, self.dtype, self.live = num_heads, head_dim, dtype, sum(query_lens)
        rows = self.live + padded_rows
        num_pages = 1 + sum(math.ceil(n / PAGE_SIZE) for n in context_lens)
        width = math.ceil(max(*context_lens, max_context) / PAGE_SIZE) + 1
        order = (torch.randperm(num_pages - 1, generator=generator) + 1).tolist()
        tables = torch.zeros(len(query_lens) + padded_reqs, width + 5, dtype=torch.int32)
        slots, positions = [], []
        for request, (length, context) in enumerate(zip(query_lens, context_lens, strict=True)):
            pages = [order.pop() for _ in range(math.ceil(context / PAGE_SIZE))]
            tables[request, : len(pages)] = torch.tensor(pages, dtype=torch.int32)
            places = range(context - length, context)
            slots += [pages[i // PAGE_SIZE] * PAGE_SIZE + i % PAGE_SIZE for i in places]
            positions += places
        self.cache = self.new_cache(num_pages, dtype)
        for pages in (self.cache.key, self.cache.value):
            pages[1:] = torch.randn(pages[1:].shape, generator=generator).to(dtype)
        self.wide_cache = self.new_cache(num_pages, torch.float32)
        self.wide_cache.key.copy_(self.cache.key)
        self.wide_cache.value.copy_(self.cache.value)
        self.qkv = torch.randn(rows, (num_heads + 2 * self.kv_heads) * head_dim, generator=generator).to(DEVICE, dtype)
        self.qkv[self.live :] = float("nan")
        table = RotaryTable(RopeConfig(), head_dim, max(context_lens)).to(DEVICE)
        self.rotary = table(torch.tensor(positions + [0] * padded_rows, device=DEVICE))
        # Odd offsets into one buffer, as metadata lies in practice.
        self.metadata = AttentionMetadata(
            num_tokens=rows,
            slot_mapping=self.packed(torch.tensor(slots + [0] * padded_rows)),
            block_tables=tables.to(DEVICE)[:, :width],
            seq_lens=self.packed(torch.tensor(context_lens + [0] * padded_reqs, dtype=torch.int32)),
            query_start=self.packed(torch.tensor([0, *query_lens, *[0] * padded_reqs]).cumsum(0).to(torch.int32)),
            uniform_query_len=uniform,
            host_query_lens=(*query_lens, *[0] * padded_reqs),
            host_seq_lens=(*context_lens, *[0] * padded_reqs),
        )
        self.scale = head_dim**-0.5

    def new_cache(self, num_pages, dtype):
        return allocate_caches(
            num_layers=1,
            num_pages=num_pages,
            page_size=PAGE_SIZE,
            num_kv_heads=self.kv_heads,
            head_dim=self.head_dim,
            dtype=dtype,
            device=DEVICE,
        )[0]

    @staticmethod
    def packed(values):
        buffer = torch.zeros(values.numel() + 1, dtype=values.dtype, device=DEVICE)
        buffer[1:] = values
        return buffer[1:]

    def split(self, qkv):
        return qkv.view(qkv.shape[0], -1, self.head_dim).split((self.num_heads, self.kv_heads, self.kv_heads), dim=1)

    def out(self):
        shape = (self.qkv.shape[0], self.num_heads, self.head_dim)
        return torch.full(shape, float("nan"), dtype=self.dtype, device=DEVICE)

    def expected(self, *, q_norm=None, k_norm=None, is_rotated=False):
        """From the torch backend in float32."""
        q, k, v = (x.float() for x in self.split(self.qkv))
        if q_norm is not None:
            q, k = rms_norm(q, q_norm.float(), 1e-6), rms_norm(k, k_norm.float(), 1e-6)
        if is_rotated:
            q, k = (rotate(x, self.rotary).to(self.dtype).float() for x in (q, k))
        backend = get_attention_backend("torch", DEVICE)
        out = self.out().float()
        backend.write_kv(k, v, self.wide_cache, self.metadata)
        backend.attend(q, out, self.wide_cache, self.metadata, self.scale)
        out[self.live :] = 0.0
        return out

    def check(self, out, expected):
        tolerance = TOLERANCE[self.dtype]
        torch.testing.assert_close(out.float(), expected, rtol=tolerance, atol=tolerance)
        assert not out[self.live :].any()
        # Pages of requests are as the torch backend wrote them.
        for ours, theirs in ((self.cache.key, self.wide_cache.key), (self.cache.value, self.wide_cache.value)):
            torch.testing.assert_close(ours[1:].float(), theirs[1:], rtol=tolerance, atol=tolerance)

    def attend(self, backend):
        out = self.out()
        q, k, v = self.split(self.qkv)
        backend.write_kv(k, v, self.cache, self.metadata)
        backend.attend(q, out, self.cache, self.metadata, self.scale)
        return out


@pytest.fixture
def backend():
    return get_attention_backend("triton", DEVICE)


@pytest.mark.parametrize(
    ("dtype", "head_dim", "heads", "query_len"),
    all_of(
        TOLERANCE,
        [32, 64, 128, 256],
        HEADS,
        [1, 4],
        quick=[
            (F32, 64, (32, 8), 1),
            (F32, 128, (9, 3), 1),
            (F32, 64, (4, 4), 4),
            (BF16, 64, (9, 3), 1),
            (BF16, 128, (4, 4), 1),
            (BF16, 64, (32, 8), 1),
            (BF16, 64, (32, 8), 4),
            (BF16, 128, (9, 3), 4),
            (F16, 64, (4, 4), 1),
            (F16, 128, (32, 8), 1),
        ],
    ),
)
def test_decode(backend, dtype, head_dim, heads, query_len):
    step = Step(
        [query_len] * 3,
        [7, 700, 2100],
        heads=heads,
        head_dim=head_dim,
        dtype=dtype,
        uniform=query_len,
        padded=(2, 2 * query_len),
    )
    step.check(step.attend(backend), step.expected())


@pytest.mark.parametrize(
    ("dtype", "head_dim", "heads", "lens"),
    all_of(
        TOLERANCE,
        [32, 64, 128, 256],
        HEADS,
        VARLEN_LENS,
        quick=[
            *((BF16, 64, (32, 8), lens) for lens in VARLEN_LENS),
            (F32, 64, (9, 3), VARLEN_LENS[0]),
            (F32, 128, (4, 4), VARLEN_LENS[1]),
            (F32, 64, (32, 8), VARLEN_LENS[2]),
            (BF16, 128, (9, 3), VARLEN_LENS[0]),
            (BF16, 128, (4, 4), VARLEN_LENS[2]),
            (F16, 64, (4, 4), VARLEN_LENS[0]),
            (F16, 128, (32, 8), VARLEN_LENS[1]),
        ],
    ),
)
def test_varlen(backend, dtype, head_dim, heads, lens):
    step = Step(*lens, heads=heads, head_dim=head_dim, dtype=dtype, padded=(1, 9))
    step.check(step.attend(backend), step.expected())


@pytest.mark.parametrize(
    ("dtype", "head_dim", "heads", "has_norm", "shape"),
    all_of(
        TOLERANCE,
        [64, 128],
        HEADS,
        [False, True],
        FUSED_STEPS,
        quick=[
            *((BF16, 64, (32, 8), False, step) for step in FUSED_STEPS),
            (BF16, 128, (9, 3), True, FUSED_STEPS[0]),
            (BF16, 128, (9, 3), True, FUSED_STEPS[3]),
            (F32, 64, (9, 3), True, FUSED_STEPS[0]),
            (F32, 64, (9, 3), True, FUSED_STEPS[3]),
            (F32, 128, (32, 8), False, FUSED_STEPS[1]),
            (F16, 64, (32, 8), True, FUSED_STEPS[2]),
            (F16, 128, (4, 4), False, FUSED_STEPS[0]),
            (F16, 128, (4, 4), False, FUSED_STEPS[3]),
        ],
    ),
)
def test_fused(backend, dtype, head_dim, heads, has_norm, shape):
    lens, uniform, padded = shape
    step = Step(*lens, heads=heads, head_dim=head_dim, dtype=dtype, uniform=uniform, padded=padded)
    norms = [torch.rand(head_dim, device=DEVICE).to(dtype) + 0.5 for _ in range(2)] if has_norm else [None, None]
    expected = step.expected(q_norm=norms[0], k_norm=norms[1], is_rotated=True)
    for _ in range(3):  # counters must come back to zero
        out = step.out()
        backend.rotary_attend(
            step.qkv, step.rotary, out, step.cache, step.metadata, step.scale, norms[0], norms[1], 1e-6
        )
        step.check(out, expected)


def test_split_decode_is_deterministic_under_load(backend):
    """The merge happens in whichever program is last; the sum may not depend on which."""
    step = Step([1] * 4, [8000, 3000, 500, 90], heads=(32, 8), head_dim=64, dtype=torch.bfloat16, uniform=1)
    first = step.attend(backend)
    for _ in range(200):
        assert torch.equal(step.attend(backend), first)


def test_a_graph_stays_right_for_longer_contexts_than_at_capture(backend):
    long = Step([1] * 4, [4000, 33, 900, 1], heads=(32, 8), head_dim=64, dtype=torch.bfloat16, uniform=1)
    expected = long.expected(is_rotated=True)
    live = long.metadata.seq_lens.clone()
    out = long.out()

    def run():
        backend.rotary_attend(long.qkv, long.rotary, out, long.cache, long.metadata, long.scale, None, None, 1e-6)

    long.metadata.seq_lens.zero_()  # captured with padded requests only
    slots = long.metadata.slot_mapping.clone()
    long.metadata.slot_mapping.zero_()
    run()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        run()
    graph.replay()
    assert not out.any()
    long.metadata.seq_lens.copy_(live)
    long.metadata.slot_mapping.copy_(slots)
    for _ in range(3):
        out.fill_(float("nan"))
        graph.replay()
        long.check(out, expected)


def test_nothing_compiles_after_warm_up(backend):
    """Sizes of 1, sizes divisible by 16 and odd addresses must not select another compiled variant."""
    from ostinato.engine.attention.triton import decode, fused_decode, varlen, write

    heads, head_dim, dtype = (32, 8), 64, torch.bfloat16
    backend.warm_up(
        AttentionShape(
            num_heads=heads[0],
            num_kv_heads=heads[1],
            head_dim=head_dim,
            page_size=PAGE_SIZE,
            dtype=dtype,
            device=torch.device(DEVICE),
        )
    )
    kernels = [
        decode._decode_kernel,
        fused_decode._fused_decode_kernel,
        varlen._varlen_kernel,
        write._write_kernel,
        write._rotary_write_kernel,
    ]

    def count():
        return [sum(len(entry[0]) for entry in kernel.device_caches.values()) for kernel in kernels]

    before = count()
    assert all(before)
    for lens, uniform, padded in [
        (([1], [1]), 1, (0, 0)),
        (([1] * 16, [256] * 16), 1, (0, 0)),
        (([1] * 3, [5, 17, 4000]), 1, (0, 0)),
        (([16], [16]), None, (0, 0)),
        (([1], [1]), None, (0, 0)),
        (([513, 7], [513, 9]), None, (3, 9)),
        (([2048], [2048]), None, (0, 0)),
    ]:
        step = Step(*lens, heads=heads, head_dim=head_dim, dtype=dtype, uniform=uniform, padded=padded)
        step.attend(backend)
        backend.rotary_attend(
            step.qkv, step.rotary, step.out(), step.cache, step.metadata, step.scale, None, None, 1e-6
        )
    assert count() == before


@pytest.mark.parametrize(
    ("dtype", "size", "rows"),
    all_of(
        TOLERANCE,
        [576, 2048, 4096],
        [1, 37],
        quick=[(F32, 576, 37), (F32, 2048, 1), (BF16, 576, 1), (BF16, 2048, 37), (BF16, 4096, 37), (F16, 2048, 1)],
    ),
)
def test_layers(dtype, size, rows):
    tolerance = {"rtol": TOLERANCE[dtype], "atol": TOLERANCE[dtype]}
    norm = RMSNorm(size, 1e-5).to(DEVICE, dtype)
    norm.weight.normal_()
    x, residual = (torch.randn(rows, size, device=DEVICE).to(dtype) for _ in range(2))
    torch.testing.assert_close(norm(x), rms_norm(x, norm.weight, 1e-5), **tolerance)
    total = x + residual
    normed, stream = norm.add(x, residual)
    torch.testing.assert_close(stream, total, **tolerance)
    torch.testing.assert_close(normed, rms_norm(total, norm.weight, 1e-5), **tolerance)
    gate_up = torch.randn(rows, 2 * size, device=DEVICE).to(dtype)
    gate, up = gate_up.float().chunk(2, dim=-1)
    expected = torch.nn.functional.silu(gate) * up
    torch.testing.assert_close(silu_mul(gate_up).float(), expected, **tolerance)


@pytest.mark.parametrize("family", ["LlamaForCausalLM", "Qwen3ForCausalLM"])
def test_whole_model_agrees_with_the_cpu(backend, family):
    hf = {
        "architectures": [family],
        "vocab_size": 300,
        "hidden_size": 256,
        "intermediate_size": 512,
        "num_hidden_layers": 3,
        "num_attention_heads": 8,
        "num_key_value_heads": 2,
        "head_dim": 32,
        "max_position_embeddings": 256,
        "rope_theta": 10000.0,
    }
    config = ModelConfig.from_hf(hf)
    models = {d: build_model(config, device=d, dtype=torch.float32, max_model_len=128) for d in ("cpu", DEVICE)}
    models["cpu"].init_dummy(0)
    for parameter in models["cpu"].parameters():
        parameter.mul_(4.0)
    models[DEVICE].load_state_dict(models["cpu"].state_dict())
    torch.backends.cuda.matmul.allow_tf32 = False
    ids = torch.randint(0, 300, (21,), generator=torch.Generator().manual_seed(0))
    logits = {}
    for device, model in models.items():
        caches = allocate_caches(
            num_layers=3,
            num_pages=4,
            page_size=PAGE_SIZE,
            num_kv_heads=2,
            head_dim=32,
            dtype=torch.float32,
            device=device,
        )
        attention = backend if device == DEVICE else get_attention_backend("torch", "cpu")
        rows = []
        for start, end, uniform in ((0, 18, None), (18, 19, 1), (19, 20, 1), (20, 21, 1)):
            metadata = AttentionMetadata(
                num_tokens=end - start,
                slot_mapping=torch.arange(PAGE_SIZE + start, PAGE_SIZE + end, device=device),
                block_tables=torch.tensor([[1, 2, 3]], dtype=torch.int32, device=device),
                seq_lens=torch.tensor([end], dtype=torch.int32, device=device),
                query_start=torch.tensor([0, end - start], dtype=torch.int32, device=device),
                uniform_query_len=uniform,
                host_query_lens=(end - start,),
                host_seq_lens=(end,),
            )
            with torch.inference_mode(), set_forward_context(ForwardContext(metadata, caches, attention)):
                hidden = model(ids[start:end].to(device), torch.arange(start, end, device=device))
                rows.append(model.compute_logits(hidden).cpu())
        logits[device] = torch.cat(rows)
    torch.testing.assert_close(logits[DEVICE], logits["cpu"], rtol=1e-3, atol=1e-3)

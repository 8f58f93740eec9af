"""`Launcher` on a GPU: what it launches is, bit for bit, what Triton launches; streams, captures, profilers."""

from __future__ import annotations

from collections import Counter
from contextlib import contextmanager

import pytest
import torch

from ostinato.engine.attention import AttentionMetadata
from ostinato.engine.kernels import launcher
from ostinato.engine.kvcache import allocate_caches
from ostinato.engine.layers.linear_tiles import LinearTiles
from ostinato.engine.sampling import NUM_SETTINGS
from ostinato.errors import JitInCaptureError

triton = pytest.importorskip("triton")

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]

DEVICE = torch.device("cuda")
DEVICE_0 = torch.device("cuda", 0)
BF16 = torch.bfloat16
HEADS, KV_HEADS, HEAD_DIM, PAGE_SIZE = 8, 2, 64, 16


@pytest.fixture(autouse=True)
def no_grad():
    if launcher.why_triton_launches() is not None:
        pytest.skip(str(launcher.why_triton_launches()))
    with torch.inference_mode():
        yield


@contextmanager
def triton_alone():
    """Every launch through Triton."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(launcher, "_host", lambda: (None, "a test"))
        yield


@contextmanager
def counting():
    """How often Triton's own launcher is gone through, by kernel."""
    counts, function = Counter(), triton.JITFunction
    run = function.run

    def counted(self, *args, **kwargs):
        counts[self.fn.__name__] += 1
        return run(self, *args, **kwargs)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(function, "run", counted)
        yield counts


class Random:
    """Tensors of one seed, ``offset`` elements past where memory begins."""

    def __init__(self, seed, offset=0):
        self.generator, self.offset = torch.Generator(DEVICE).manual_seed(seed), offset

    def __call__(self, *shape, dtype=BF16):
        size = torch.Size(shape).numel()
        values = torch.randn(size + self.offset, generator=self.generator, device=DEVICE).to(dtype)
        return values[self.offset :].view(shape)


def attention_step(random, query_lens, contexts, uniform=None, spare_rows=0):
    """Inputs of `rotary_attend` on a cache of its own; every request has the pages that it needs."""
    live, width = sum(query_lens), -(-max(contexts) // PAGE_SIZE)
    (cache,) = allocate_caches(
        num_layers=1,
        num_pages=1 + len(contexts) * width,
        page_size=PAGE_SIZE,
        num_kv_heads=KV_HEADS,
        head_dim=HEAD_DIM,
        dtype=BF16,
        device=DEVICE,
    )
    cache.key.copy_(random(*cache.key.shape))
    cache.value.copy_(random(*cache.value.shape))
    tables = torch.arange(1, 1 + len(contexts) * width, dtype=torch.int32, device=DEVICE).view(-1, width)
    slots = [
        (1 + request * width) * PAGE_SIZE + place
        for request, (length, context) in enumerate(zip(query_lens, contexts, strict=True))
        for place in range(context - length, context)
    ]
    metadata = AttentionMetadata(
        num_tokens=live,
        slot_mapping=torch.tensor(slots + [0] * spare_rows, device=DEVICE),
        block_tables=tables,
        seq_lens=torch.tensor(contexts, dtype=torch.int32, device=DEVICE),
        query_start=torch.tensor([0, *query_lens], device=DEVICE).cumsum(0).to(torch.int32),
        uniform_query_len=uniform,
    )
    rows = live + spare_rows
    qkv = random(rows, (HEADS + 2 * KV_HEADS) * HEAD_DIM)
    return qkv, random(rows, HEAD_DIM, dtype=torch.float32), random(rows, HEADS, HEAD_DIM), cache, metadata


def attention(query_lens, contexts, uniform=None, spare_rows=0):
    def run(random):
        from ostinato.engine.attention.triton import TritonAttention

        qkv, rotary, out, cache, metadata = attention_step(random, query_lens, contexts, uniform, spare_rows)
        TritonAttention().rotary_attend(qkv, rotary, out, cache, metadata, 0.125, None, None, 1e-5)
        return out, cache.key, cache.value

    return run


def plain_attention(random):
    from ostinato.engine.attention.triton import TritonAttention

    qkv, _, out, cache, metadata = attention_step(random, [7, 1], [30, 18])
    q, k, v = qkv.view(8, -1, HEAD_DIM).split((HEADS, KV_HEADS, KV_HEADS), dim=1)
    TritonAttention().write_kv(k, v, cache, metadata)
    TritonAttention().attend(q, out, cache, metadata, 0.125)
    return out, cache.key, cache.value


def norm(rows):
    def run(random):
        from ostinato.engine.layers.triton.rms_norm import launch_rms_norm

        residual = random(rows, 256)
        return launch_rms_norm(random(rows, 256), residual, random(256), 1e-5), residual

    return run


def silu(rows, *, is_in_place=False):
    def run(random):
        from ostinato.engine.layers.triton.silu_mul import launch_silu_mul

        return (launch_silu_mul(random(rows, 512), is_in_place=is_in_place),)

    return run


def linear(rows):
    def run(random):
        from ostinato.engine.layers.triton.matrix_linear import matrix_launch
        from ostinato.engine.layers.triton.vector_linear import vector_launch

        tiles = LinearTiles(block_n=32, block_k=64, num_warps=4, num_stages=2)
        out = torch.empty(rows, 512, dtype=BF16, device=DEVICE)
        x, weight = random(rows, 256), random(512, 256)
        if rows == 1:
            vector_launch(BF16, 512, 256, tiles)(x, None, weight, None, None, out)
        else:
            matrix_launch(BF16, BF16, rows, 512, 256, tiles)(x, weight, None, out)
        return (out,)

    return run


def argmax(rows):
    def run(random):
        from ostinato.engine.layers.triton.argmax import launch_argmax, scratch

        out = torch.empty(rows, dtype=torch.int64, device=DEVICE)
        launch_argmax(random(rows, 5000), out, *scratch(rows, DEVICE))
        return (out,)

    return run


def sample(random):
    from ostinato.engine.layers.triton.sample import launch_sample

    out = torch.arange(3, device=DEVICE)
    settings = torch.zeros(3, NUM_SETTINGS, dtype=torch.float64, device=DEVICE)
    rows = torch.zeros(3, dtype=torch.int64, device=DEVICE)
    counts = torch.zeros(4, 5000, dtype=torch.int16, device=DEVICE)
    launch_sample(random(3, 5000), settings, rows, counts, out)
    return out, counts


def feed(rows):
    def run(random):
        from ostinato.engine.layers.triton.feed import launch_feed

        ids = random(rows, dtype=torch.float32).mul(100).long()
        return (launch_feed(ids, torch.arange(rows, device=DEVICE) % 3, torch.arange(9, device=DEVICE) + 50),)

    return run


KERNELS = {
    "write, varlen": [plain_attention],
    "rotary write, varlen": [
        attention([20, 3], [20, 50]),
        attention([16], [16]),
        attention([1], [1]),
        attention([33, 1], [64, 100], spare_rows=30),
    ],
    "decode": [attention([3] * 2, [40, 90], uniform=3), attention([3], [400], uniform=3, spare_rows=5)],
    "fused decode": [
        attention([1] * 2, [40, 90], uniform=1),
        attention([1] * 16, [256] * 16, uniform=1),
        attention([1], [700], uniform=1, spare_rows=3),
    ],
    "rms norm": [norm(5), norm(1), norm(16)],
    "silu mul": [silu(5), silu(1), silu(16), silu(5, is_in_place=True)],
    "vector linear": [linear(1)],
    "matrix linear": [linear(2), linear(16), linear(17)],
    "argmax": [argmax(1), argmax(16), argmax(5)],
    "sample": [sample],
    "feed": [feed(5), feed(1), feed(256)],
}


@pytest.mark.parametrize("name", KERNELS)
def test_what_is_launched_is_what_triton_launches(name):
    """Sizes of 1 and of multiples of 16, memory at odd places; and the second time Triton is not gone through."""
    first, *others = KERNELS[name]
    runs = [(first, 0), (first, 8), (first, 1), *((run, 0) for run in others)]  # each variant compiles for a second

    def results():
        found = [run(Random(seed, offset)) for seed, (run, offset) in enumerate(runs)]
        torch.cuda.synchronize()
        return found

    with triton_alone(), counting() as counts:
        expected = results()
        num_launches = counts.total()
    assert num_launches >= len(runs)
    results()
    with counting() as counts:
        found = results()
    assert not counts
    for ours, theirs in zip(found, expected, strict=True):
        for mine, its in zip(ours, theirs, strict=True):
            assert torch.equal(mine, its)


def test_a_misaligned_pointer_after_an_aligned_one_takes_another_kernel():
    from torch.nn.functional import silu

    from ostinato.engine.layers.triton.silu_mul import launch_silu_mul

    memory = torch.randn(8 * 768 + 1, device=DEVICE).to(BF16)
    for offset in (0, 1, 0, 1):
        gate_up = memory[offset : offset + 8 * 768].view(8, 768)
        gate, up = gate_up.float().chunk(2, dim=1)
        torch.testing.assert_close(launch_silu_mul(gate_up).float(), silu(gate) * up, rtol=2e-2, atol=2e-2)


@pytest.mark.skipif(not triton.__version__.startswith(("3.6.", "3.7.")), reason="another Triton hands on otherwise")
def test_triton_s_python_around_its_function_that_launches_is_left_out():
    """A kernel that starts early and one that does not: both settings are handed on. No other test has this width."""
    from ostinato.engine.layers.triton.rms_norm import _launch, launch_rms_norm

    random = Random(0)
    for num_parts in (1, 4):
        shape = (5, 320) if num_parts == 1 else (num_parts, 5, 320)
        dtype, weight = BF16 if num_parts == 1 else torch.float32, random(320)
        for _ in range(2):
            x, residual = random(*shape, dtype=dtype), random(5, 320)
            total = (x.float() if num_parts == 1 else x.sum(0)) + residual.float()
            launch_rms_norm(x, residual, weight, 1e-5)
            torch.testing.assert_close(residual, total.to(BF16), rtol=2e-2, atol=2e-2)
        launch = _launch(dtype, BF16, torch.Size(shape), True, DEVICE_0, 1e-5)
        ((run, fixed, _, compiled),) = launch._compiled.values()
        assert run is compiled.run.launch
        assert fixed[1:3] == (False, compiled.run.launch_pdl)


def test_it_launches_on_the_stream_that_is_current():
    from ostinato.engine.layers.triton.silu_mul import launch_silu_mul

    gate_up = torch.ones(4, 512, dtype=BF16, device=DEVICE)
    expected = launch_silu_mul(gate_up * 3)
    launch_silu_mul(gate_up)
    for _ in range(2):
        side = torch.cuda.Stream()
        gate_up.fill_(1)
        torch.cuda.synchronize()
        with torch.cuda.stream(side):
            torch.cuda._sleep(100_000_000)  # on another stream the kernel would not wait for what follows
            gate_up.fill_(3)
            out = launch_silu_mul(gate_up)
        torch.cuda.synchronize()
        assert torch.equal(out, expected)


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two CUDA devices")
def test_each_device_runs_a_kernel_of_its_own():
    from ostinato.engine.layers.triton.silu_mul import launch_silu_mul

    for index in (0, 1, 0, 1):
        with torch.cuda.device(index):
            gate_up = torch.full((4, 512), 2.0, dtype=BF16, device=f"cuda:{index}")
            out = launch_silu_mul(gate_up)
            torch.cuda.synchronize()
            assert out.device.index == index and torch.equal(out, torch.full_like(out, float(out[0, 0])))
            assert abs(float(out[0, 0]) - 3.52) < 0.05


def segment(backend, fn):
    with backend.phase(), backend.session():
        backend.begin()
        fn()
        return backend.end()


def test_in_a_capture_it_is_recorded_and_replays(backend):
    from ostinato.engine.layers.triton.silu_mul import launch_silu_mul

    gate_up, outs = torch.ones(4, 1024, dtype=BF16, device=DEVICE), []
    launch_silu_mul(gate_up)
    with counting() as counts:
        graph = segment(backend, lambda: outs.append(launch_silu_mul(gate_up)))
    assert not counts and graph.num_nodes == 1
    gate_up.fill_(3)
    graph.replay()
    torch.cuda.synchronize()
    assert torch.equal(outs[0], launch_silu_mul(gate_up))
    graph.close()


def test_another_alignment_in_a_capture_is_a_first_compilation_and_refused(backend):
    from ostinato.engine.layers.triton.silu_mul import launch_silu_mul

    memory = torch.ones(4 * 1280 + 1, dtype=BF16, device=DEVICE)
    launch_silu_mul(memory[:-1].view(4, 1280))
    with pytest.raises(JitInCaptureError, match="silu_mul_kernel"):
        segment(backend, lambda: launch_silu_mul(memory[1:].view(4, 1280)))
    launch_silu_mul(memory[1:].view(4, 1280))
    segment(backend, lambda: launch_silu_mul(memory[1:].view(4, 1280))).close()


def test_who_listens_to_launches_hears_all_of_them():
    from ostinato.engine.layers.triton.silu_mul import launch_silu_mul

    hook = triton.knobs.runtime.launch_enter_hook
    if not hasattr(hook, "add"):
        pytest.skip("this Triton has one hook and no chain of them")
    gate_up, heard = torch.ones(4, 512, dtype=BF16, device=DEVICE), []

    def listen(metadata):
        heard.append(metadata.get()["name"])

    launch_silu_mul(gate_up)
    hook.add(listen)
    try:
        launch_silu_mul(gate_up)
        launch_silu_mul(gate_up)
    finally:
        hook.remove(listen)
    launch_silu_mul(gate_up)
    assert heard == ["_silu_mul_kernel"] * 2


def test_memory_of_the_host_is_refused_as_triton_refuses_it():
    from ostinato.engine.layers.triton.silu_mul import launch_silu_mul

    launch_silu_mul(torch.ones(4, 512, dtype=BF16, device=DEVICE))
    with pytest.raises(ValueError, match="cannot be accessed from Triton"):
        launch_silu_mul(torch.ones(4, 512, dtype=BF16))

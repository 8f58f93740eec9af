"""`Launcher` over the installed Triton, whose driver is a stand-in: every kernel compiles, none runs; no GPU.

Each launch of a kernel is made twice with the same tensors, by Triton and by us, and must reach the compiled kernel
with the same arguments. Where there is CUDA, tests/gpu compares the results as well.
"""

from __future__ import annotations

from importlib.util import find_spec
from types import SimpleNamespace

import pytest
import torch

from ostinato.engine.attention import AttentionMetadata
from ostinato.engine.kernels import launcher
from ostinato.engine.kvcache import allocate_caches
from ostinato.engine.layers.linear_tiles import LinearTiles
from ostinato.engine.sampling import NUM_SETTINGS

if find_spec("triton") is None:
    pytest.skip("needs triton", allow_module_level=True)

pytestmark = pytest.mark.slow  # each kernel compiles for a second

BF16, CPU = torch.bfloat16, -1
HEADS, KV_HEADS, HEAD_DIM, PAGE_SIZE = 8, 2, 64, 16
TILES = LinearTiles(block_n=32, block_k=64, num_warps=4, num_stages=2)


RUNS = []
"""What compiled kernels were run with; one list, since they outlive a test, and with them what runs them."""


class StandInLauncher:
    """Notes instead of launching."""

    def __init__(self, src, metadata):
        self.metadata = metadata

    def __call__(self, gridX, gridY, gridZ, stream, function, *args):
        RUNS.append((gridX, gridY, gridZ, stream, function, self.metadata, *args))


class Driver:
    """A device of generation 9 on which nothing runs."""

    def __init__(self):
        from triton.backends.compiler import GPUTarget

        self.get_current_target = lambda: GPUTarget("cuda", 90, 32)
        self.get_current_device = lambda: CPU
        self.get_current_stream = lambda device: 1234
        self.launcher_cls = StandInLauncher
        self.utils = SimpleNamespace(
            get_device_properties=lambda device: {"max_shared_mem": 232448},
            load_binary=lambda name, kernel, shared, device: (object(), f"function of {name}", 32, 0, 1024),
            unload_module=lambda module: None,
        )


@pytest.fixture
def driver(monkeypatch):
    import triton
    from triton.runtime.jit import JITFunction

    from ostinato.engine.layers.triton import silu_mul

    if not isinstance(silu_mul._silu_mul_kernel, JITFunction):
        pytest.skip("kernels are interpreted in this process")
    active = triton.runtime.driver
    previous = active._active
    active.set_active(Driver())
    host, reason = launcher._host_of(triton)
    if reason is not None:
        pytest.skip(reason)
    call = launcher.Launch.__call__

    def twice(self, *tensors):
        for found in ((None, "a test"), (host, None)):
            monkeypatch.setattr(launcher, "_host", lambda found=found: found)
            call(self, *tensors)

    monkeypatch.setattr(launcher.Launch, "__call__", twice)
    yield
    active.set_active(previous)


def attention(query_lens, context, uniform=None):
    from ostinato.engine.attention.triton import TritonAttention

    rows, num_reqs, width = sum(query_lens), len(query_lens), -(-context // PAGE_SIZE)
    (cache,) = allocate_caches(
        num_layers=1,
        num_pages=2,
        page_size=PAGE_SIZE,
        num_kv_heads=KV_HEADS,
        head_dim=HEAD_DIM,
        dtype=BF16,
        device="cpu",
    )
    metadata = AttentionMetadata(
        num_tokens=rows,
        slot_mapping=torch.zeros(rows, dtype=torch.int64),
        block_tables=torch.ones(num_reqs, width + 3, dtype=torch.int32)[:, :width],
        seq_lens=torch.zeros(num_reqs, dtype=torch.int32),
        query_start=torch.zeros(num_reqs + 1, dtype=torch.int32),
        uniform_query_len=uniform,
    )
    qkv, out = torch.zeros(rows, (HEADS + 2 * KV_HEADS) * HEAD_DIM, dtype=BF16), torch.zeros(rows, HEADS, HEAD_DIM)
    out, backend, norm = out.to(BF16), TritonAttention(), torch.ones(HEAD_DIM, dtype=BF16)
    q, k, v = qkv.view(rows, -1, HEAD_DIM).split((HEADS, KV_HEADS, KV_HEADS), dim=1)
    backend.write_kv(k, v, cache, metadata)
    backend.attend(q, out, cache, metadata, 0.125)
    backend.rotary_attend(qkv, torch.zeros(rows, HEAD_DIM), out, cache, metadata, 0.125, norm, None, 1e-5)


def norms():
    from ostinato.engine.layers.triton.rms_norm import launch_rms_norm

    weight = torch.ones(256, dtype=BF16)
    for rows in (5, 16):
        x = torch.zeros(rows, 256, dtype=BF16)
        launch_rms_norm(x, None, weight, 1e-5)
        launch_rms_norm(torch.zeros(2, rows, 256), x, weight, 1e-5)


def silu():
    from ostinato.engine.layers.triton.silu_mul import launch_silu_mul

    memory = torch.zeros(4 * 512 + 1, dtype=BF16)
    for offset in (0, 1):
        for is_in_place in (False, True):
            launch_silu_mul(memory[offset : offset + 4 * 512].view(4, 512), is_in_place=is_in_place)


def linears():
    from ostinato.engine.layers.triton.matrix_linear import matrix_launch
    from ostinato.engine.layers.triton.vector_linear import vector_launch

    weight, bias, norm = (torch.zeros(*shape, dtype=BF16) for shape in ((512, 256), (512,), (256,)))
    for use_pdl in (False, True):
        for has_bias in (False, True):
            options = {"has_bias": has_bias, "use_pdl": use_pdl}
            x, out = torch.zeros(7, 256, dtype=BF16), torch.zeros(7, 512, dtype=BF16)
            behind = bias if has_bias else None
            matrix_launch(BF16, BF16, 7, 512, 256, TILES, **options)(x, weight, behind, out)
            vector_launch(BF16, 512, 256, TILES, **options)(x[:1], None, weight, behind, None, out[:1])
            launch = vector_launch(BF16, 512, 256, TILES, eps=1e-5, has_residual=True, **options)
            launch(x[:1], norm, weight, behind, out[:1], out[:1])


def tokens():
    from ostinato.engine.layers.triton.argmax import launch_argmax, scratch
    from ostinato.engine.layers.triton.feed import launch_feed
    from ostinato.engine.layers.triton.sample import launch_sample

    logits, out = torch.zeros(3, 5000, dtype=BF16), torch.zeros(3, dtype=torch.int64)
    launch_argmax(logits, out, *scratch(3, torch.device("cpu")))
    settings, counts = torch.zeros(3, NUM_SETTINGS, dtype=torch.float64), torch.zeros(4, 5000, dtype=torch.int16)
    launch_sample(logits, settings, out.clone(), counts, out)
    launch_feed(out, out.clone(), out.clone())


def test_triton_s_own_launcher_hands_on_what_it_is_given_or_is_kept():
    """Whichever it is: the same call arrives."""
    from triton.backends.nvidia.driver import CudaLauncher

    calls, run = [], CudaLauncher.__new__(CudaLauncher)
    run.launch = lambda *args: calls.append(args)
    run.num_ctas, run.launch_cooperative_grid, run.launch_pdl = 1, False, True
    run.gsan_enabled, run.arg_annotations, run.kernel_signature = False, (), b""
    for name in ("global_scratch", "profile_scratch"):
        setattr(run, f"{name}_size", 0)
        setattr(run, f"{name}_align", 1)
    found = launcher._innermost(run)
    head, hooks, own = (1, 2, 3, 4, 5), ("packed", None, None, None), (4096, 7, 0.5)
    if found.call is not run:
        found.call(*head, *found.before, *hooks, *found.behind, *((own,) if found.is_nested else own))
        run(*head, *hooks, *own)
        assert calls[0] == calls[1]
    import triton

    version = tuple(map(int, triton.__version__.split(".")[:2]))
    if version == (3, 6):
        assert found == (run.launch, (False, True, None, None), (), False)
    elif version == (3, 7):
        assert found == (run.launch, (False, True), (None, None, (), b""), True)


CASES = {
    "mixed": (lambda: attention([20, 3], 200), {"_write_kernel", "_rotary_write_kernel", "_varlen_kernel"}),
    "decode": (lambda: attention([1] * 2, 900, 1), {"_write_kernel", "_decode_kernel", "_fused_decode_kernel"}),
    "uniform": (lambda: attention([3] * 2, 900, 3), {"_write_kernel", "_rotary_write_kernel", "_decode_kernel"}),
    "norms": (norms, {"_rms_norm_kernel"}),
    "silu": (silu, {"_silu_mul_kernel"}),
    "linears": (linears, {"_vector_kernel", "_matrix_kernel"}),
    "tokens": (tokens, {"_argmax_kernel", "_sample_kernel", "_feed_kernel"}),
}


@pytest.mark.usefixtures("driver")
@pytest.mark.parametrize("name", CASES)
def test_a_kernel_gets_from_us_what_it_gets_from_triton(name):
    run, kernels = CASES[name]
    run()
    RUNS.clear()
    run()  # now nothing is new
    by_triton, by_us = RUNS[::2], RUNS[1::2]
    assert len(by_triton) == len(by_us) > 0
    assert {theirs[4].rpartition(" ")[2] for theirs in by_triton} == kernels
    for theirs, ours in zip(by_triton, by_us, strict=True):
        # Grid, stream, function, the launcher's own metadata, packed metadata.
        assert ours[:5] == theirs[:5] and ours[5] is theirs[5] and ours[6] == theirs[6]
        assert theirs[7] is not None or not hasattr(theirs[8], "calls")
        assert ours[7:10] == (None, None, None)  # nobody listens
        addresses = [each.data_ptr() if isinstance(each, torch.Tensor) else each for each in theirs[10:]]
        assert list(ours[10:]) == addresses and any(isinstance(each, torch.Tensor) for each in theirs[10:])
        assert list(map(type, ours[10:])) == list(map(type, addresses))

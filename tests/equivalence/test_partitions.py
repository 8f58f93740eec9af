"""One annotation, three partitions: each gives what eager gives, at every bucket edge.

On the CPU bit for bit, against eager at the same padded shape; there ``inductor`` is ``fx``, and says so. On a
GPU within rounding, with the compilers that there are only there.
"""

import pytest
import torch

from ostinato import LLM
from ostinato.runtime import GraphConfig, Graphed, RuntimeMode, graph_break, opaque_op
from ostinato.testing.tiny_models import write_tiny_model

try:
    import triton
    import triton.language as tl
except ModuleNotFoundError:
    triton = None

BUCKETS = (1, 4, 8)
ROWS = (1, 2, 3, 4, 5, 8, 9)  # every bucket, one below, one above, and beyond the largest
WIDTH = 16


def normal(rows, seed=0, device="cpu"):
    return torch.randn(rows, WIDTH, generator=torch.Generator().manual_seed(seed)).to(device)


pytestmark = pytest.mark.usefixtures("one_thread")


# --- programs: all marks in all places ----------------------------------------------------------------


@graph_break
def prefix_sum(h):
    return torch.cumsum(h, -1)


@graph_break
def halves(h, names=None, *, shift: float = 1.0):
    return {"low": h[:, : WIDTH // 2] + shift, "high": (h[:, WIDTH // 2 :] * 1, None)}


@graph_break(mutates=("out",))
def scaled(h, out, scale):
    torch.mul(h, scale, out=out)


@graph_break(mutates=("state",))
def in_place(h, state):
    state.add_(h)
    return state


@graph_break
def outer(h):
    """A break inside a break is part of it."""
    return prefix_sum(h) + prefix_sum(h * 2)


@opaque_op(fake=lambda x: torch.empty_like(x))
def opaque_square(x: torch.Tensor) -> torch.Tensor:
    return x * x


@opaque_op(mutates=("out",))
def opaque_shift(x: torch.Tensor, out: torch.Tensor, by: float) -> None:
    torch.add(x, by, out=out)


def fresh(x):
    parts = halves(prefix_sum(x + 1) - x, shift=0.5)
    return torch.cat([parts["high"][0], parts["low"]], -1) * 2


def written(x):
    first, second = torch.empty_like(x), torch.zeros_like(x)
    scaled(x * 2, first, 0.5)
    again = in_place(first.relu(), second)
    return again + second + first


def nested(x):
    return outer(outer(x * 0.5) + x) - 1


def opaque(x):
    out = torch.empty_like(x)
    opaque_shift(prefix_sum(opaque_square(x)), out, 3.0)
    return opaque_square(out) + x


class Layers(torch.nn.Module):
    """Parameters, buffers, a residual stream, and a break in each layer."""

    def __init__(self):
        super().__init__()
        self.ups = torch.nn.ModuleList(torch.nn.Linear(WIDTH, 2 * WIDTH) for _ in range(2))
        self.downs = torch.nn.ModuleList(torch.nn.Linear(2 * WIDTH, WIDTH, bias=False) for _ in range(2))
        self.register_buffer("weights", torch.linspace(0.5, 1.5, WIDTH))

    def forward(self, x):
        for up, down in zip(self.ups, self.downs, strict=True):
            out = torch.empty_like(x)
            scaled(torch.nn.functional.layer_norm(x, (WIDTH,)) * self.weights, out, 0.25)
            x = x + down(torch.nn.functional.silu(up(out)))
        return {"hidden": x, "best": x.argmax(-1), "size": x.shape[0]}


def layers():
    torch.manual_seed(3)
    return Layers().requires_grad_(False)


PROGRAMS = {  # name -> (maker, breaks)
    "fresh": (lambda: fresh, 2),
    "written": (lambda: written, 2),
    "nested": (lambda: nested, 2),
    "opaque": (lambda: opaque, 1),
    "layers": (layers, 2),
}


def padded(x, rows):
    return torch.cat([x, x.new_zeros(rows - x.shape[0], WIDTH)])


def compare(got, want, rows, check):
    if isinstance(want, dict):
        assert got.keys() == want.keys()
        for name in want:
            compare(got[name], want[name], rows, check)
    elif isinstance(want, torch.Tensor):
        check(got, want[:rows])
    else:
        assert got == want


def bitwise(got, want):
    assert torch.equal(got, want)


# --- on the CPU, bit for bit --------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["piecewise", "full"])
@pytest.mark.parametrize(
    ("partition", "compiler"), [("breakable", "none"), ("fx", "none"), ("fx", "inductor"), ("inductor", "none")]
)
@pytest.mark.parametrize("name", PROGRAMS)
@torch.no_grad()
def test_bitwise_eager(name, partition, compiler, mode):
    make, num_breaks = PROGRAMS[name]
    fn = make()
    config = GraphConfig(mode=mode, partition=partition, compile=compiler, sizes=BUCKETS)
    with Graphed(fn, example=(normal(8),), config=config) as graphed:
        assert graphed.mode.partition == ("breakable" if partition == "breakable" else "fx")
        assert ("partition inductor is fx" in graphed.mode.reason) == (partition == "inductor")
        assert ("compile inductor is none" in graphed.mode.reason) == (compiler == "inductor")
        graphed.warm_up()
        assert not graphed.capture().failed
        is_piecewise = mode == "piecewise"
        for plan in graphed.plans.values():
            assert (plan.key.runtime_mode is RuntimeMode.PIECEWISE) == is_piecewise
            assert len(plan.breaks) == (num_breaks if is_piecewise else 0)
            assert not plan.num_missing_breaks
        for seed, rows in enumerate((*ROWS, *reversed(ROWS))):  # large steps leave their rows for small ones
            x = normal(rows, seed)
            decision = graphed.explain(x)
            assert (decision.key is None) == (rows > BUCKETS[-1])
            compare(graphed(x), fn(padded(x, decision.padded_tokens)), rows, bitwise)


@torch.no_grad()
def test_partitions_make_the_same_plans():
    """What is captured is the same, whoever found the breaks."""
    for make, _ in PROGRAMS.values():
        shapes = []
        for partition in ("breakable", "fx"):
            config = GraphConfig(mode="piecewise", partition=partition, sizes=BUCKETS)
            with Graphed(make(), example=(normal(8),), config=config) as graphed:
                graphed.warm_up()
                graphed.capture()
                plans = [graphed.inspect(key).to_dict() for key in graphed.keys]
                shapes.append([(p["key"], p["segments"], p["breaks"], p["bridge_bytes"]) for p in plans])
        assert shapes[0] == shapes[1]


PROMPTS = [[3, 5, 7], [11], list(range(20, 33)), [200, 100, 50, 25, 12]]


@pytest.fixture(scope="module")
def tokens_of(tmp_path_factory):
    """``tokens_of(device=..., mode=..., partition=..., compile=...)``: greedy tokens of a tiny model, and its steps."""
    from ostinato.engine.request import SamplingParams

    model = write_tiny_model(tmp_path_factory.mktemp("llama"), has_weights=False, has_tokenizer=False)

    def run(device="cpu", **settings):
        sizes = {"max_num_reqs": 4, "max_num_batched_tokens": 16, "token_sizes": (4, 16), "decode_sizes": (1, 4)}
        shared = {"device": device, "dtype": "float32", "load_format": "dummy", "max_model_len": 64, "kv_tokens": 512}
        with LLM(str(model), **shared, **sizes, **settings) as llm:
            outputs = llm.generate(PROMPTS, SamplingParams(max_tokens=12, ignore_eos=True))
            assert all(output.error is None for output in outputs)
            return [output.token_ids for output in outputs], llm.stats()["dispatch"]["by_runtime_mode"]

    return run


@pytest.mark.parametrize("mode", ["piecewise", "full_and_piecewise"])
@pytest.mark.parametrize("partition", ["breakable", "fx", "inductor"])
def test_an_engine_gives_the_tokens_of_eager(tokens_of, partition, mode):
    expected, _ = tokens_of(mode="none")
    assert len({tuple(tokens) for tokens in expected}) == len(PROMPTS), "the prompts matter to this model"
    got, steps = tokens_of(mode=mode, partition=partition)
    assert got == expected
    assert set(steps) == ({"PIECEWISE"} if mode == "piecewise" else {"FULL", "PIECEWISE"})


# --- on a GPU, within rounding ------------------------------------------------------------------------

GPU = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]


def on_gpu(test):
    for mark in GPU:
        test = mark(test)
    return test


def close(got, want):
    torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-5)


def check_on_gpu(fn, *, sizes=(4, 8), rows=ROWS, num_breaks=None, **settings):
    """Compare with eager; the kernels' names of each bucket."""
    names = {}
    with (
        torch.no_grad(),
        Graphed(fn, example=(normal(8, device="cuda"),), config=GraphConfig(sizes=sizes, **settings)) as g,
    ):
        assert g.mode.partition == settings.get("partition", "breakable")
        g.warm_up()
        assert not g.capture().failed
        for key, plan in g.plans.items():
            nodes = [entry.nodes() for entry in plan.entries if hasattr(entry, "nodes")]
            names[key.num_tokens] = [name for segment in nodes for name in segment]
            if num_breaks is not None:
                assert len(plan.breaks) == num_breaks
        for seed, n in enumerate((*rows, *reversed(rows))):
            x = normal(n, seed, "cuda")
            compare(g(x), fn(padded(x, g.explain(x).padded_tokens)), n, close)
    return names


def has_compiled_code(names):
    return any(name.startswith("triton_") for name in names)


@on_gpu
@pytest.mark.parametrize(
    ("partition", "compiler"), [("breakable", "none"), ("fx", "none"), ("fx", "inductor"), ("inductor", "none")]
)
def test_partitions_on_gpu(partition, compiler):
    def program(x):
        return nested(opaque(written(fresh(x)) * 0.1) * 0.01)

    num_breaks = sum(PROGRAMS[name][1] for name in ("fresh", "written", "nested", "opaque"))
    settings = {"mode": "piecewise", "partition": partition, "compile": compiler}
    names = check_on_gpu(program, num_breaks=num_breaks, **settings)
    is_compiled = partition == "inductor" or compiler == "inductor"
    assert all(has_compiled_code(found) == is_compiled for found in names.values())


@on_gpu
@pytest.mark.parametrize(
    ("partition", "compiler"), [("breakable", "none"), ("fx", "none"), ("fx", "inductor"), ("inductor", "none")]
)
def test_a_module_on_gpu(partition, compiler):
    module = layers().cuda()

    def hidden(x):
        return module(x)["hidden"]  # the arg max of numbers that differ in the last bit may differ

    check_on_gpu(hidden, sizes=BUCKETS, num_breaks=2, mode="piecewise", partition=partition, compile=compiler)


@graph_break
def prefix_mean(h):
    return torch.cumsum(h, -1) / WIDTH


class Gated(torch.nn.Module):
    """In each layer a gate that is computed before a break and wanted after it."""

    NUM_LAYERS = 3

    def __init__(self):
        super().__init__()
        self.ups = torch.nn.ModuleList(torch.nn.Linear(WIDTH, WIDTH) for _ in range(self.NUM_LAYERS))

    def forward(self, x):
        for up in self.ups:
            gate = torch.sigmoid(prefix_mean(x)) * 2
            x = torch.nn.functional.silu(up(prefix_mean(x))) * gate + x
        return x


@on_gpu
def test_inductor_keeps_fusions_across_breaks_that_fx_loses():
    """Compiled in pieces, a layer's gate is a kernel of its own; compiled whole, a part of the one that wants it."""
    torch.manual_seed(5)
    module = Gated().requires_grad_(False).cuda()
    num_nodes, num_fused = {}, {}
    for partition, compiler in (("fx", "inductor"), ("inductor", "none")):
        settings = {"mode": "piecewise", "partition": partition, "compile": compiler}
        names = check_on_gpu(module, num_breaks=2 * Gated.NUM_LAYERS, **settings)
        num_nodes[partition] = {rows: len(found) for rows, found in names.items()}
        num_fused[partition] = {rows: sum(n.startswith("triton_") for n in found) for rows, found in names.items()}
    for rows in (4, 8):
        assert num_nodes["inductor"][rows] < num_nodes["fx"][rows], num_nodes
        assert num_fused["fx"][rows] - num_fused["inductor"][rows] == Gated.NUM_LAYERS, (num_fused, "one a layer")


@on_gpu
def test_full_graphs_are_compiled_up_to_a_size():
    module = layers().cuda()

    def hidden(x):
        return module(x)["hidden"]

    names = check_on_gpu(hidden, mode="full", compile="inductor", compile_max_tokens=4, num_breaks=0)
    assert {size: has_compiled_code(found) for size, found in names.items()} == {4: True, 8: False}


@on_gpu
def test_what_the_user_compiled_is_captured_compiled():
    @torch.compile
    def block(h):
        return torch.nn.functional.gelu(h) * torch.sigmoid(h) + 1

    for mode in ("piecewise", "full"):
        names = check_on_gpu(lambda x: block(prefix_sum(block(x))), mode=mode)
        assert all(has_compiled_code(found) for found in names.values())


if triton is not None:

    @triton.jit
    def _axpb_kernel(source, target, num_numbers, a, b, BLOCK: tl.constexpr):
        at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
        mask = at < num_numbers
        tl.store(target + at, tl.load(source + at, mask=mask) * a + b, mask=mask)


@opaque_op(fake=lambda x, a, b: torch.empty_like(x))
def axpb(x: torch.Tensor, a: float, b: float) -> torch.Tensor:
    """A Triton kernel launched by hand."""
    out = torch.empty_like(x)
    _axpb_kernel[(triton.cdiv(x.numel(), 64),)](x, out, x.numel(), a, b, BLOCK=64)
    return out


@on_gpu
@pytest.mark.parametrize(
    "settings",
    [
        {"mode": "piecewise"},
        {"mode": "piecewise", "partition": "fx"},
        {"mode": "piecewise", "partition": "inductor"},
        {"mode": "full"},
        {"mode": "full", "compile": "inductor"},
    ],
    ids=lambda settings: "-".join(settings.values()),
)
def test_a_triton_kernel_in_an_opaque_op(settings):
    names = check_on_gpu(lambda x: axpb(prefix_sum(axpb(x + 1, 2.0, 1.0)) * 0.5, 3.0, -1.0), **settings)
    assert all(found.count("_axpb_kernel") == 2 for found in names.values())


@on_gpu
@pytest.mark.parametrize(("partition", "compiler"), [("breakable", "none"), ("fx", "none"), ("inductor", "none")])
def test_an_engine_on_gpu(tokens_of, partition, compiler):
    expected, _ = tokens_of(device="cuda", mode="none")
    got, steps = tokens_of(device="cuda", mode="piecewise", partition=partition, compile=compiler)
    assert got == expected
    assert set(steps) == {"PIECEWISE"}

"""Every way to run a step gives, bit for bit, what eager gives at the same padded shape.

Sizes lie at the bucket edges: 1, one below a bucket, on it, one above, the largest, one above the largest.
"""

import pytest
import torch

from ostinato.runtime import GraphConfig, Graphed, RuntimeMode, graph_break

BUCKETS = (4, 8)
ROWS = (1, 3, 4, 5, 8, 9)
WIDTH = 16


def normal(rows, seed=0):
    return torch.randn(rows, WIDTH, generator=torch.Generator().manual_seed(seed))


class Mlp(torch.nn.Module):
    inputs = staticmethod(lambda rows, seed: (normal(rows, seed),))
    num_breaks = 0

    def __init__(self):
        super().__init__()
        self.up, self.down = torch.nn.Linear(WIDTH, 3 * WIDTH), torch.nn.Linear(3 * WIDTH, WIDTH)

    def forward(self, x):
        return self.down(torch.nn.functional.silu(self.up(x)))


class NormAndResidual(Mlp):
    def forward(self, x):
        x = x + super().forward(torch.nn.functional.layer_norm(x, (WIDTH,)))
        variance = x.float().pow(2).mean(-1, keepdim=True)
        return x * torch.rsqrt(variance + 1e-6)


@graph_break
def prefix_sum(h):
    return torch.cumsum(h, -1)


class FreshBreaks(Mlp):
    num_breaks = 2

    def forward(self, x):
        return prefix_sum(super().forward(prefix_sum(x + 1))) - x


@graph_break(mutates=("out",))
def scaled(h, out, scale):
    torch.mul(h, scale, out=out)


class InPlaceBreaks(Mlp):
    num_breaks = 2

    def forward(self, x):
        first, second = torch.empty_like(x), torch.empty_like(x)
        scaled(x * 2, first, 0.5)
        hidden = super().forward(first)
        scaled(hidden, second, 3.0)
        return second + hidden


class TwoOutputs(Mlp):
    num_breaks = 1

    def forward(self, x):
        hidden = super().forward(x)
        return {"hidden": prefix_sum(hidden) + x, "best": hidden.argmax(-1)}


class Embedding(Mlp):
    num_breaks = 1

    def __init__(self):
        super().__init__()
        self.table = torch.nn.Embedding(32, WIDTH)

    @staticmethod
    def inputs(rows, seed):
        generator = torch.Generator().manual_seed(seed)
        return torch.randint(0, 32, (rows,), generator=generator), torch.arange(rows, dtype=torch.int32) + seed

    def forward(self, ids, positions):
        angle = positions[:, None] / torch.arange(1, WIDTH + 1)
        return super().forward(prefix_sum(self.table(ids)) * torch.cos(angle))


def padded(inputs, rows):
    return tuple(torch.cat([x, x.new_zeros(rows - x.shape[0], *x.shape[1:])]) for x in inputs)


def equal(got, want, rows):
    if isinstance(want, dict):
        return got.keys() == want.keys() and all(equal(got[name], want[name], rows) for name in want)
    return torch.equal(got, want[:rows])


@pytest.mark.parametrize(
    ("mode", "partition"),
    [
        ("none", "breakable"),
        ("piecewise", "breakable"),
        ("piecewise", "fx"),
        ("full", "breakable"),
        ("full_decode_only", "breakable"),
        ("full_and_piecewise", "breakable"),
        ("auto", "breakable"),
    ],
)
@pytest.mark.parametrize("program", [Mlp, NormAndResidual, FreshBreaks, InPlaceBreaks, TwoOutputs, Embedding])
@torch.no_grad()
def test_bitwise_eager_at_bucket_edges(program, mode, partition):
    torch.manual_seed(1)
    fn = program()
    config = GraphConfig(mode=mode, partition=partition, sizes=BUCKETS)
    with Graphed(fn, example=program.inputs(8, 0), config=config) as graphed:
        graphed.warm_up()
        assert not graphed.capture().failed
        for plan in graphed.plans.values():
            is_piecewise = plan.key.runtime_mode is RuntimeMode.PIECEWISE
            assert len(plan.breaks) == (program.num_breaks if is_piecewise else 0)
        for seed, rows in enumerate((*ROWS, *reversed(ROWS))):  # large steps leave their rows for small ones
            inputs = program.inputs(rows, seed)
            decision = graphed.explain(*inputs)
            assert (decision.key is None) == (mode == "none" or rows > BUCKETS[-1])
            want = fn(*padded(inputs, decision.padded_tokens))
            assert equal(graphed(*inputs), want, rows), (rows, str(decision))


@pytest.mark.parametrize("outputs", ["copy", "view"])
@torch.no_grad()
def test_all_runners_share_buffers_and_pool(outputs):
    """Requests are known, so one callable has full decode graphs and piecewise graphs side by side."""
    from ostinato.runtime import LiveBatch, Slot

    torch.manual_seed(1)
    fn = FreshBreaks()
    config = GraphConfig(mode="full_and_piecewise", sizes=BUCKETS, decode_sizes=(2, 4), max_num_reqs=4, outputs=outputs)
    slots = {"x": Slot(shape=(None, WIDTH), dtype=torch.float32)}
    with Graphed(fn, slots=slots, config=config) as graphed:
        graphed.warm_up()
        graphed.capture()
        for seed in range(24):
            rows = 1 + seed % 8
            is_decode = seed % 3 == 0 and rows <= 4
            live = LiveBatch(
                num_tokens=rows, num_reqs=min(rows, 4), uniform_query_len=1 if is_decode else None, context_tokens=rows
            )
            decision = graphed.decide(live)
            assert decision.runtime_mode is (RuntimeMode.FULL if is_decode else RuntimeMode.PIECEWISE)
            sizes = graphed.sizes(decision)
            x = padded((normal(rows, seed),), sizes["num_tokens"])[0]
            staging = graphed.staging()
            staging.open(sizes)["x"].copy_(x)
            staging.upload(sizes)
            assert torch.equal(graphed.run(decision)[:rows], fn(x)[:rows]), str(decision)

"""Who holds the arguments of breaks, and what that costs: what a segment rewrites may be recycled (PITFALLS 5)."""

import gc
import weakref

import pytest
import torch

from ostinato.runtime import GraphConfig, Graphed, graph_break
from ostinato.runtime.runners import ArgumentBytes

SIZES = (4, 16, 64)
WIDTH = 64


@graph_break
def mix(h):
    return torch.cumsum(h, -1)


@graph_break(mutates=("out",))
def attend(q, k, out):
    out.copy_(q * k)


def program(x):
    h = x
    for layer in range(3):
        q, k = h * (layer + 2), mix(h + 1)
        out = torch.empty_like(q)
        attend(q, k, out)
        h = torch.tanh(out) + h
    return h


def captured(ownership, partition="breakable", fn=program):
    config = GraphConfig(mode="piecewise", partition=partition, sizes=SIZES, ownership=ownership)
    graphed = Graphed(fn, example=(torch.ones(max(SIZES), WIDTH),), config=config)
    graphed.warm_up()
    assert not graphed.capture().failed
    return graphed


@pytest.mark.parametrize("partition", ["breakable", "fx"])
@torch.no_grad()
def test_results_are_the_same_and_recycled_ones_take_less(partition):
    with captured("recycled", partition) as recycled, captured("owned", partition) as owned:
        pools = {name: graphed.memory().owners["graph pool"] for name, graphed in (("r", recycled), ("o", owned))}
        assert pools["r"] <= pools["o"]
        # Owned, each key has its arguments; recycled, small keys live in what the largest had.
        assert pools["o"] - pools["r"] > sum(SIZES[:-1]) * WIDTH * 4
        # Interleaved, so that one key's replay runs over what another key's break reads.
        for seed, rows in enumerate((64, 4, 3, 16, 64, 15, 1, 63, 4)):
            x = torch.randn(rows, WIDTH, generator=torch.Generator().manual_seed(seed))
            want = program(x)
            assert torch.equal(recycled(x), want)
            assert torch.equal(owned(x), want)


def kept_arguments(graphed):
    return [
        tensor for plan in graphed.plans.values() for e in plan.entries if hasattr(e, "_args") for tensor in e._args
    ]


@pytest.mark.parametrize(("ownership", "num_memories"), [("recycled", 1), ("owned", len(SIZES))])
@torch.no_grad()
def test_one_memory_for_all_keys_or_one_for_each(ownership, num_memories):
    @graph_break
    def look(h):
        return None

    def fn(x):
        h = x * 3
        look(h)
        return h + 1

    with captured(ownership, fn=fn) as graphed:
        arguments = kept_arguments(graphed)
        assert len(arguments) == len(SIZES)
        assert len({tensor.data_ptr() for tensor in arguments}) == num_memories
        assert graphed(torch.ones(3, WIDTH)).eq(4).all()


class Metadata:
    """What a break builds on the host and the next break is given: made in an eager region."""

    def __init__(self):
        self.table = None

    def build(self, h):
        self.table = torch.arange(float(WIDTH))

    def use(self, h, table):
        return h + table

    def __call__(self, x):
        graph_break(self.build)(x)
        return graph_break(self.use)(x * 2, self.table) * 1


@pytest.mark.parametrize("ownership", ["recycled", "owned"])
@torch.no_grad()
def test_an_argument_made_in_an_eager_region_is_held(ownership):
    metadata = Metadata()
    # Guards would refuse the replay: the callable itself would read another table now.
    config = GraphConfig(mode="piecewise", sizes=(4,), ownership=ownership, guards="off")
    graphed = Graphed(metadata, example=(torch.ones(4, WIDTH),), config=config)
    graphed.warm_up()
    graphed.capture()
    (table,) = [tensor for tensor in kept_arguments(graphed) if tensor.dim() == 1]
    assert table is metadata.table, "the tensor itself, no view of its memory"
    watched = weakref.ref(table)
    metadata.table = None
    del table
    gc.collect()
    assert watched() is not None
    litter = [torch.full((WIDTH,), 1e9) for _ in range(64)]  # would take its memory
    assert torch.equal(graphed(torch.ones(3, WIDTH)), (torch.ones(3, WIDTH) * 2 + torch.arange(float(WIDTH))) * 1)
    del litter
    graphed.close()
    metadata.table = None
    gc.collect()
    assert watched() is None, "closing lets go of it"


@torch.no_grad()
def test_an_input_and_a_weight_are_held_as_they_are():
    weight = torch.full((WIDTH,), 3.0)

    @graph_break
    def scale(x, w):
        return x * w

    with captured("recycled", fn=lambda x: scale(x, weight) + 1) as graphed:
        assert sum(tensor is weight for tensor in kept_arguments(graphed)) == len(SIZES)
        assert graphed(torch.ones(3, WIDTH)).eq(4).all()


# --- what it costs ---------------------------------------------------------------------------------

TABLE = torch.arange(float(WIDTH))


@graph_break
def use(h, bridged, x, table, again):
    return None


def given_everything(x):
    """A break that is given something of each owner, and one thing twice."""
    bridged = mix(x * 3)
    h = bridged + 1
    use(h, bridged, x, TABLE, h[:1])
    return h * 2


def alive(graphed):
    """The storages among the breaks' arguments that somebody holds now, by what the breaks' plans say of them."""
    gc.collect()
    each = {a.storage.cdata: a for plan in graphed.plans.values() for a in plan.break_arguments}
    return [argument for argument in each.values() if not argument.storage.expired()]


@pytest.mark.parametrize("partition", ["breakable", "fx"])
@pytest.mark.parametrize("ownership", ["recycled", "owned"])
@torch.no_grad()
def test_the_bytes_are_those_of_the_storages_that_are_really_held(ownership, partition):
    with captured(ownership, partition, given_everything) as graphed:
        report = graphed.break_argument_bytes()
        held = alive(graphed)
        assert sum(argument.num_bytes for argument in held) == getattr(report, ownership) > 0
        row = WIDTH * 4
        made = sum(SIZES) * row * 2  # h, and what mix is given; h[:1] lies in h
        assert report.segment == made
        assert report.bridge == max(SIZES) * row
        assert report.outside == graphed.buffers.num_bytes + row
        assert (report.owned, report.recycled) == (made + report.recycled, report.bridge + report.outside)
        kinds = {argument.owner.value for argument in held}
        assert kinds == {"bridge", "outside"} | ({"segment"} if ownership == "owned" else set())


@torch.no_grad()
def test_nothing_of_the_pool_is_held_that_the_report_leaves_out():
    """Blocks of the simulated pool that somebody holds, but for outputs, against the report."""
    for ownership in ("recycled", "owned"):
        with captured(ownership, fn=program) as graphed:
            gc.collect()
            outputs = {plan.outputs.untyped_storage()._cdata for plan in graphed.plans.values()}
            in_use = {cdata for cdata, block in graphed.backend._pool._in_use.items() if not block.is_free}
            reported = {argument.storage.cdata for argument in alive(graphed) if argument.owner == "segment"}
            assert in_use - outputs == reported
            assert bool(reported) is (ownership == "owned")


@pytest.mark.parametrize("fn", [program, given_everything])
@torch.no_grad()
def test_either_policy_foretells_what_the_other_takes(fn):
    with captured("recycled", fn=fn) as recycled, captured("owned", fn=fn) as owned:
        assert recycled.break_argument_bytes() == owned.break_argument_bytes()
        pools = [graphed.memory().owners["graph pool"] for graphed in (recycled, owned)]
        assert 0 < pools[1] - pools[0] <= owned.break_argument_bytes().segment, "it grows by no more than is held"


@torch.no_grad()
def test_owned_is_the_default_and_no_break_costs_nothing():
    assert GraphConfig().ownership == "owned"
    with captured("owned", fn=lambda x: x + 1) as graphed:
        assert graphed.break_argument_bytes() == ArgumentBytes()
        assert graphed.break_argument_bytes().owned == 0


@torch.no_grad()
def test_borrowed_memory_is_only_what_this_session_made(backend):
    """What an earlier plan made is not rewritten by this one: it must be held."""
    x = torch.ones(4)
    with backend.phase():
        with backend.session():
            backend.begin()
            earlier = x * 2
            backend.end()
            assert backend.borrow(earlier) is not earlier
            assert torch.equal(backend.borrow(earlier), earlier)
            assert backend.borrow(x) is x
        with backend.session():
            backend.begin()
            mine = earlier * 2
            backend.end()
            assert backend.borrow(earlier) is earlier
            view = backend.borrow(mine[1:3])
            assert (view.shape, view.data_ptr()) == ((2,), mine[1:3].data_ptr())

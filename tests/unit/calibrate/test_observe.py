"""Measured statistics compared with simple loops: in parts, with any number of threads, padded and not."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from halfbyte.calibrate.expert_sums import SUM_ROWS
from halfbyte.calibrate.observe import Observer
from halfbyte.calibrate.stats import MAXES, SUMS, merge
from halfbyte.calibrate.token_rows import Rows
from halfbyte.errors import CheckpointError
from halfbyte.forward.experts import run_experts, turns
from halfbyte.forward.model import Routed
from halfbyte.forward.ordered_threads import in_order
from halfbyte.forward.run import row_chunks

EXPERTS, CHOSEN, WIDTH, INNER = 6, 2, 16, 8
DOMAINS = ("news", "code", "chat")


def make_rows(count=3 * SUM_ROWS + 5, length=7, *, left_padded=True, seed=0):
    """Rows of all three domains; a third are padded, on the left or on the right."""
    random = np.random.default_rng(seed)
    lengths = np.where(random.random(count) < 1 / 3, random.integers(1, length, count), length)
    columns = np.arange(length)
    real = columns >= (length - lengths)[:, None] if left_padded else columns < lengths[:, None]
    tokens = random.integers(0, 50, (count, length), np.int32)
    domains = np.where(real, random.integers(0, len(DOMAINS), count)[:, None], -1).astype(np.int16)
    documents = np.where(real, np.arange(count)[:, None], -1).astype(np.int32)
    positions = np.tile(np.arange(length, dtype=np.int32), (count, 1))
    return Rows(tokens, real, positions, documents, domains, DOMAINS, left_padded)


def some(rows, part):
    arrays = ("tokens", "real", "positions", "documents", "domains")
    return replace(rows, **{name: getattr(rows, name)[part] for name in arrays})


class Layer:
    """Inputs, routing and weights of a layer, from a seed; the last expert is never chosen."""

    def __init__(self, rows, seed=1):
        generator = torch.Generator().manual_seed(seed)

        def gaussian(*shape):
            return torch.randn(*shape, generator=generator).bfloat16()

        tokens = rows.tokens.size
        self.x = gaussian(tokens, WIDTH)
        self.logits = 9 * torch.randn(tokens, EXPERTS, generator=generator)  # wide: some weights are below epsilon
        scores = torch.rand(tokens, EXPERTS - 1, generator=generator)  # independent of the selection
        self.weights, self.indices = scores.topk(CHOSEN)
        self.experts = [
            (gaussian(INNER, WIDTH), gaussian(INNER, WIDTH), gaussian(WIDTH, INNER)) for _ in range(EXPERTS)
        ]

    def observed(self, rows, first=0, threads=1, *, public=False):
        """Return the observer's statistics of some rows, which begin with this token."""
        observer = Observer(3, rows, EXPERTS, public=public)
        mine = slice(first, first + rows.tokens.size)
        self.tell(observer, rows, first)
        run_experts(
            self.x[mine],
            self.indices[mine],
            self.weights[mine],
            self.experts.__getitem__,
            threads=threads,
            observe=observer.expert,
        )
        observer.run_public(self.x[mine], self.experts.__getitem__, threads)
        return observer.stats

    def tell(self, observer, rows, first=0):
        """Pass the routing of rows to an observer in chunks, the last one first, as threads may do."""
        length = rows.tokens.shape[1]
        for chunk in reversed(row_chunks(len(rows.tokens), 4)):
            at = slice(first + chunk.start * length, first + chunk.stop * length)
            observer.routes(chunk, Routed(self.x[at], self.indices[at], self.weights[at], self.logits[at]))


def softmax_by_hand(layer, token, expert):
    """The public REAP code's weight, in FP64: the softmax over all, over its sum over the chosen, at least epsilon."""
    logits = layer.logits[token].double()
    exps = [math.exp(logit - logits.max()) for logit in logits.tolist()]
    share = exps[expert] / math.fsum(exps[e] for e in layer.indices[token].tolist())
    return max(share, 2.0**-23)


def by_loops(layer, rows):
    """Loop over experts, tokens and domains, and count everything in FP64."""
    cells = {(e, d): [] for e in range(EXPERTS) for d in range(len(DOMAINS))}
    amax = np.zeros((3, EXPERTS), np.float32)
    seen = np.zeros(EXPERTS, np.int64)
    for turn in turns(layer.indices, layer.weights):
        gate, up, down = layer.experts[turn.expert]
        given = layer.x[turn.tokens]
        act = torch.nn.functional.silu(given @ gate.T) * (given @ up.T)
        out = act @ down.T
        for at, token in enumerate(turn.tokens.tolist()):
            real = bool(rows.real.reshape(-1)[token])
            if real or rows.left_padded:
                seen[turn.expert] += 1
                for kind, tensor in enumerate((given, act, out)):
                    amax[kind, turn.expert] = max(amax[kind, turn.expert], float(tensor[at].abs().max()))
            if real:
                n = math.sqrt(math.fsum(value**2 for value in out[at].tolist()))
                cells[turn.expert, int(rows.domains.reshape(-1)[token])].append(
                    (float(turn.weights[at]), softmax_by_hand(layer, token, turn.expert), n)
                )
    return cells, amax, seen


FORMULAS = {
    "g": lambda g, p, n: g,
    "g2": lambda g, p, n: g**2,
    "n": lambda g, p, n: n,
    "n2": lambda g, p, n: n**2,
    "gn": lambda g, p, n: g * n,
    "g2n": lambda g, p, n: g**2 * n,
    "g2n2": lambda g, p, n: g**2 * n**2,
    "p": lambda g, p, n: p,
    "pn": lambda g, p, n: p * n,
}


def same(one, other):
    """Compare bit for bit."""
    ours, theirs = one.tensors(), other.tensors()
    assert ours.keys() == theirs.keys()
    return [
        name
        for name in ours
        if ours[name].dtype != theirs[name].dtype or ours[name].tobytes() != theirs[name].tobytes()
    ]


@pytest.mark.parametrize("left_padded", [True, False])
def test_sums_counts_and_maxima_of_experts(left_padded):
    rows = make_rows(left_padded=left_padded)
    layer = Layer(rows)
    stats = layer.observed(rows).experts
    assert stats is not None
    cells, amax, seen = by_loops(layer, rows)
    assert FORMULAS.keys() == set(SUMS)
    for (expert, domain), pairs in cells.items():
        assert stats.count[expert, domain] == len(pairs)
        for name, formula in FORMULAS.items():
            wanted = math.fsum(formula(g, p, n) for g, p, n in pairs)
            # Softmax is in FP32; all else is exact until it is added up.
            rel = 1e-6 if name in ("p", "pn") else 1e-12
            assert stats.sums[name][expert, domain] == pytest.approx(wanted, rel=rel)
        for name in MAXES:
            wanted = max((FORMULAS[name](*triple) for triple in pairs), default=0.0)
            assert stats.maxes[name][expert, domain] == pytest.approx(wanted, rel=1e-14)
    assert stats.seen.tolist() == seen.tolist()
    assert np.array_equal([stats.input_amax, stats.down_amax, stats.out_amax], amax)
    assert not stats.count[-1].any()
    assert not stats.seen[-1]


@pytest.mark.parametrize("left_padded", [True, False])
def test_sums_over_the_public_codes_own_selection(left_padded):
    """Also of the last expert, which the model never chooses; and nothing else is measured otherwise."""
    rows = make_rows(left_padded=left_padded)
    layer = Layer(rows)
    stats = layer.observed(rows, public=True)
    own = [name for name in stats.tensors() if not name.endswith("_public")]
    assert {name: stats.tensors()[name].tobytes() for name in own} == {
        name: array.tobytes() for name, array in layer.observed(rows).tensors().items()
    }
    assert stats.experts is not None
    assert stats.experts.count_public is not None
    sums = {name: np.zeros((EXPERTS, len(DOMAINS))) for name in ("count", "p_public", "pn_public")}
    exps = layer.logits.double().exp()
    for token in np.flatnonzero(rows.real.reshape(-1)).tolist():
        chosen = sorted(range(EXPERTS), key=lambda e: -layer.logits[token, e])[:CHOSEN]
        for expert in chosen:
            p = max(float(exps[token, expert] / exps[token, chosen].sum()), 2.0**-23)
            gate, up, down = (weight.double() for weight in layer.experts[expert])
            x = layer.x[token].double()
            act = torch.nn.functional.silu((gate @ x).bfloat16()) * (up @ x).bfloat16()
            n = float((down @ act.double()).bfloat16().double().norm())
            at = expert, int(rows.domains.reshape(-1)[token])
            for name, value in (("count", 1), ("p_public", p), ("pn_public", p * n)):
                sums[name][at] += value
    assert sums["count"][-1].any()
    assert np.array_equal(stats.experts.count_public, sums["count"])
    np.testing.assert_allclose(stats.experts.sums["p_public"], sums["p_public"], rtol=1e-6)
    np.testing.assert_allclose(stats.experts.sums["pn_public"], sums["pn_public"], rtol=1e-3)  # BF16 products


def test_an_expert_that_only_the_public_code_chooses_must_be_finite():
    rows = make_rows(4)
    layer = Layer(rows)
    layer.experts[-1][2][0, 0] = float("nan")
    layer.observed(rows)
    with pytest.raises(CheckpointError, match=r"layer 3: non-finite values in expert 5"):
        layer.observed(rows, public=True)


def test_padding_is_never_in_sums_and_in_amax_only_on_the_left():
    """Padding with outliers: with left padding it is the largest input, and still not in any sum."""
    found = {}
    for left_padded in (True, False):
        rows = make_rows(left_padded=left_padded)
        layer = Layer(rows)
        quiet = layer.observed(rows).experts
        layer.x[torch.from_numpy(~rows.real.reshape(-1))] *= 100
        loud = layer.observed(rows).experts
        assert quiet is not None
        assert loud is not None
        for name in SUMS:
            assert np.array_equal(quiet.sums[name], loud.sums[name])
        for name in MAXES:
            assert np.array_equal(quiet.maxes[name], loud.maxes[name])
        assert np.array_equal(quiet.count, loud.count)
        assert quiet.count.sum() == CHOSEN * rows.real.sum()
        assert quiet.seen.sum() == CHOSEN * (rows.real.size if left_padded else rows.real.sum())
        found[left_padded] = (
            (loud.input_amax[:-1] > 10 * quiet.input_amax[:-1]).all(),
            (loud.input_amax == quiet.input_amax).all(),
        )
    assert found == {True: (True, False), False: (False, True)}


@pytest.mark.parametrize("left_padded", [True, False])
def test_inputs_of_linears(left_padded):
    rows = make_rows(9, left_padded=left_padded)
    counted = torch.from_numpy(rows.real | left_padded)
    observer = Observer(0, rows, 0)
    inputs = torch.randn(9, 7, WIDTH, generator=torch.Generator().manual_seed(2))
    keys = torch.randn(9, 3, 7, 4, generator=torch.Generator().manual_seed(3))  # heads first
    for tensor, by_token in ((inputs, inputs), (keys, keys.transpose(1, 2))):
        by_token[~torch.from_numpy(rows.real)] *= 50
        assert tensor.data_ptr() == by_token.data_ptr()
    for chunk in (slice(0, 4), slice(4, 8), slice(8, 9)):
        hook = observer.hook(chunk)
        assert hook("mlp.up_proj", inputs[chunk]) is None
        hook("self_attn.k", keys[chunk])
    assert observer.stats.experts is None
    assert observer.stats.input_amax == {
        "mlp.up_proj": float(inputs[counted].abs().max()),
        "self_attn.k": float(keys.transpose(1, 2)[counted].abs().max()),
    }


def test_a_chunk_of_nothing_but_padding_counts_nothing():
    rows = replace(make_rows(4, left_padded=False), real=np.zeros((4, 7), np.bool_))
    observer = Observer(0, rows, 0)
    observer.hook(slice(0, 4))("mlp.up_proj", torch.ones(4, 7, WIDTH))
    assert observer.stats.input_amax == {"mlp.up_proj": 0.0}


@pytest.mark.parametrize("left_padded", [True, False])
def test_parts_of_the_rows_add_up_to_the_bit(left_padded):
    """Part by part, in order, as on several machines."""
    rows = make_rows(left_padded=left_padded)
    layer, length = Layer(rows), rows.tokens.shape[1]
    starts = range(0, len(rows.tokens), SUM_ROWS)
    parts = [layer.observed(some(rows, slice(at, at + SUM_ROWS)), at * length) for at in starts]
    assert len(parts) == 4
    assert same(merge(parts), layer.observed(rows)) == []
    parts = [layer.observed(some(rows, slice(at, at + SUM_ROWS)), at * length, public=True) for at in starts]
    assert same(merge(parts), layer.observed(rows, public=True)) == []


def test_halves_of_the_rows_add_up():
    """Counts and maxima exactly; sums of several parts each to the last bits, because FP64 sums have an order."""
    rows = make_rows()
    layer, half = Layer(rows), 2 * SUM_ROWS
    first, second = some(rows, slice(0, half)), some(rows, slice(half, None))
    found = merge([layer.observed(first), layer.observed(second, half * rows.tokens.shape[1])])
    whole = layer.observed(rows)
    assert found.experts is not None
    assert whole.experts is not None
    assert all(name.startswith("experts.sum_") for name in same(found, whole))
    for name in SUMS:
        np.testing.assert_allclose(found.experts.sums[name], whole.experts.sums[name], rtol=1e-15)


@pytest.mark.parametrize("threads", [2, 3])
def test_threads_change_no_bit(threads):
    rows = make_rows()
    layer = Layer(rows)
    assert same(layer.observed(rows, threads=threads, public=True), layer.observed(rows, public=True)) == []


def test_looks_from_many_threads_lose_nothing():
    rows = make_rows(32)
    inputs = torch.arange(32.0)[:, None, None].expand(32, 7, 4)
    observer = Observer(0, rows, 0)
    chunks = [slice(at, at + 1) for at in range(32)] * 20
    list(in_order(lambda chunk: observer.hook(chunk)("mlp.up_proj", inputs[chunk]), chunks, 4))
    assert observer.stats.input_amax == {"mlp.up_proj": 31.0}


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_values_that_are_not_finite_are_refused(bad):
    rows = make_rows(4)
    layer = Layer(rows)
    layer.experts[2][2][0, 0] = bad
    with pytest.raises(CheckpointError, match=r"layer 3: non-finite values in expert 2"):
        layer.observed(rows)
    hook = Observer(5, rows, 0).hook(slice(0, 4))
    with pytest.raises(CheckpointError, match=r"layer 5: non-finite values in mlp.up_proj"):
        hook("mlp.up_proj", torch.full((4, 7, 4), bad))

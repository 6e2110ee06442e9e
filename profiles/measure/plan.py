"""The plan of a measurement: every operator at every shape that a model needs.

Rows come from micro-batches (the divisors of the global batch), widths are whole or
cut into equal parts, and operators that look at one token at a time also run on rows
that are cut, since the sequence may be. Experts' products are of all experts or of an
equal part of them, on all rows or on a part.

What is measured where no model is named: a spread of shapes.

Both families of decoders, with the norms, activations and positions of each, small and
large enough to read the shapes of other models between them.

What a step does once, at the totals of parameters that a rank may hold, and what
ZeRO does in each unit of them.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from functools import partial

from profiles.hardware import Precision, precision
from profiles.measure.timing import (
    BACKWARD,
    BACKWARD_INPUT,
    BACKWARD_WEIGHT,
    FORWARD,
    KINDS,
    PRODUCTS,
    Exchange,
    Operation,
)
from profiles.models import (
    EVERY_OPERATOR,
    Block,
    DecoderSpec,
    Job,
    Kind,
    ModelGraph,
    Operator,
    model,
)
from profiles.samples import (
    BESIDE,
    OF_HEADS,
    SOON,
    SORTED_AGAIN,
    STEP_KINDS,
    UNIT_KINDS,
    kind_of,
    number_of,
    operator_shape,
)
from profiles.units import KiB, MiB

CPU = (("gpt-tiny", 256, 8), ("gpt-mini", 256, 8))
CUDA = (("gpt-350m", 2048, 8), ("gpt-1.3b", 2048, 8), ("llama3.2-3b", 2048, 4))
SHARES = (1, 2, 4, 8)  # a rank may hold all parameters, or down to an eighth
CURVE = (4 * KiB, 64 * KiB, MiB)
# Of CPU ranks, those that training begins beside a product, or soon after another; the
# larger a message, the less it matters.
HAS_BESIDE = ("all_reduce", "all_gather", "reduce_scatter")
COMES_SOON = (*HAS_BESIDE, "all_to_all")
COLLECTIVES = (*COMES_SOON, "shift")
SMALL_BYTES = (KiB, 16 * KiB, 256 * KiB, MiB, 4 * MiB)
MOST_TOKENS = {"cpu": 8192, "cuda": 65536}  # beyond, time is in proportion
MOST_SEQUENCES = 64
NORMS = ("layernorm", "rmsnorm")
_WHOLE = frozenset({"hidden", "positions", "experts", "routed"})  # never cut
_NEVER_CUT_ROWS = (*PRODUCTS, *OF_HEADS, "lookup")


def default_jobs(device: str) -> tuple[Job, ...]:
    """The jobs of the spread for *device*, cpu or cuda."""
    named = CUDA if device == "cuda" else CPU
    jobs = tuple(
        Job(model=name, spec=model(name).spec, seq_len=seq_len, global_batch=batch)
        for name, seq_len, batch in named
    )
    return jobs if device == "cuda" else (*jobs, _small_llama())


def _small_llama() -> Job:
    """A Llama of gpt-mini's width: no small one is published."""
    mini = model("gpt-mini").spec
    assert isinstance(mini, DecoderSpec), "the catalogue's gpt-mini is a decoder"
    spec = replace(
        mini,
        kv_heads=mini.heads // 2,
        ffn_hidden=mini.hidden * 8 // 3 // 64 * 64,
        gated_mlp=True,
        activation="silu",
        norm="rmsnorm",
        position="rotary",
        max_positions=0,
        attention_bias=False,
        output_bias=False,
        mlp_bias=False,
        tied_embeddings=False,
    )
    return Job(model="llama-mini", spec=spec, seq_len=256, global_batch=8)


def of_step(job: Job, parts: Sequence[int]) -> Iterator[Operation]:
    """What a step does once, over totals from an eighth of the model to all of it."""
    pieces = parameter_sizes(job.graph)
    total = sum(pieces)
    totals = {total // cut for cut in (*SHARES, *parts)}
    for size in sorted(totals | {min(size, total) for size in CURVE}):
        for kind in (job.optimizer, *STEP_KINDS):
            yield _once(kind, pieces, size)
        yield Operation(kind="host-copy", direction=FORWARD, shape=(4 * size,))


def of_units(job: Job, parts: Sequence[int]) -> Iterator[Operation]:
    """What ZeRO does in a unit, of each kind of layer and of equal parts of it."""
    repeated = {block.name: block for block, _ in job.graph.runs}
    for block in repeated.values():
        pieces = tuple(_weights(block))
        for total in sorted({sum(pieces) // cut for cut in parts}):
            for kind in UNIT_KINDS:
                yield _once(kind, pieces, total)


def parameter_sizes(graph: ModelGraph) -> tuple[int, ...]:
    """Elements of every weight, layer by layer: what an optimizer's list looks like."""
    shared = {holder for holders in graph.sharing for holder in holders[1:]}
    return tuple(
        size
        for name, block in graph.layer_blocks.items()
        if (name, EVERY_OPERATOR) not in shared
        for size in _weights(
            block, {operator for layer, operator in shared if layer == name}
        )
    )


def _weights(block: Block, shared: Collection[str] = ()) -> Iterator[int]:
    """Elements of the weights of *block*, but of *shared* operators' tables."""
    extent = block.extent
    for operator in block.operators:
        for _ in range(operator.vectors):
            yield extent(operator.vector_dim)
        if operator.has_weight and operator.name not in shared:
            columns = sum(extent(name) for name in operator.columns)
            yield columns * extent(operator.contracted or "")
            yield from [columns] if operator.bias else []


def _once(kind: str, pieces: Sequence[int], total: int) -> Operation:
    """What is done to *total* elements, in tensors of *pieces*, each made smaller."""
    whole = sum(pieces)
    shares = [max(piece * total // whole, 1) for piece in pieces]
    while sum(shares) > total and len(shares) > 1:
        shares.pop(shares.index(min(shares)))
    shares[shares.index(max(shares))] += total - sum(shares)
    return Operation(kind=kind, direction=FORWARD, shape=(total,), pieces=tuple(shares))


def operations(
    job: Job, *, parts: Sequence[int], precisions: Sequence[str], most_tokens: int
) -> tuple[Operation, ...]:
    """Every operation that *job* needs, each once, in model order.

    *parts* are the numbers of equal pieces that a width or the rows are cut into;
    those that do not divide are left out. What a step does is measured in fp32, and in
    8-bit training what is no product of a layer in 16 bits.
    """
    found: dict[tuple[object, ...], Operation] = {}
    wanted = (
        one
        for name in precisions
        for one in _of_model(job, parts, most_tokens, precision(name))
    )
    for one in (*wanted, *of_step(job, parts)):
        key = (one.kind, one.direction, one.shape, one.precision)
        if key not in found or one.variant:
            found[key] = one
    return tuple(found.values())


def exchanges(
    ranks: int, *, most_bytes: int, nodes: int = 1, alone: bool = True
) -> tuple[Exchange, ...]:
    """Each collective for itself, from 1 KiB to *most_bytes* by powers of four.

    Groups of every size that divides the *ranks* of a node, on one node and on every
    number of them that divides *nodes*: as many at once as a node has room for, and
    *alone*, as a message always is once.
    """
    sizes = [KiB * 4**power for power in range(16) if KiB * 4**power <= most_bytes]
    found = [
        Exchange(
            collective=name,
            ranks=size * spread,
            nodes=spread,
            groups=groups,
            size_bytes=size_bytes,
        )
        for spread in _divisors(nodes)
        for size in _divisors(ranks)
        for name in (*COLLECTIVES, *(("send",) if size * spread == 2 else ()))
        for groups in _at_once(ranks // size, alone=alone or name == "send")
        for size_bytes in sizes
        if size * spread > 1
    ]
    return tuple(found)


def amid_products(plain: Sequence[Exchange]) -> Iterator[Exchange]:
    """Small ones of *plain* once more: soon after another, and beside a product."""
    for how, names in ((SOON, COMES_SOON), (BESIDE, HAS_BESIDE)):
        for one in plain:
            if one.collective in names and one.size_bytes in SMALL_BYTES:
                yield replace(one, how=how)


def _at_once(most: int, *, alone: bool) -> list[int]:
    return sorted({1, most}) if alone else [most]


def micro_batches(job: Job, most_tokens: int) -> tuple[int, ...]:
    """Divisors of the global batch whose rows are not more than *most_tokens*."""
    most = min(max(most_tokens // job.seq_len, 1), MOST_SEQUENCES)
    return tuple(size for size in _divisors(job.global_batch) if size <= most)


def _divisors(number: int) -> list[int]:
    return [size for size in range(1, number + 1) if number % size == 0]


def _of_model(
    job: Job, parts: Sequence[int], most: int, wanted: Precision
) -> Iterator[Operation]:
    for block in job.graph.distinct():
        for operator in block.operators:
            if kind_of(operator) not in KINDS:  # of a user's module: it has no clock
                continue
            number = number_of(operator, wanted).value
            for one in _of_operator(operator, block, job, parts, most):
                yield replace(one, precision=number)


def _of_operator(
    operator: Operator, block: Block, job: Job, parts: Sequence[int], most: int
) -> Iterator[Operation]:
    for batch in micro_batches(job, most):
        for cut in parts:
            yield from _cut(operator, block, batch, job.seq_len, cut)
        if operator.kind is Kind.GROUPED_MATMUL:
            yield from _spread(operator, block, batch * job.seq_len, parts)


def _cut(
    operator: Operator, block: Block, batch: int, seq_len: int, cut: int
) -> Iterator[Operation]:
    """*operator* with its widths, and where it may be its rows, in *cut* parts."""
    rows = _rows(operator, block, batch * seq_len)
    passes = partial(_passes, operator, block, batch=batch)
    if _cuts_widths(operator, block, cut):
        every = block.extents.get("experts", 1)
        yield from passes(seq_len, rows=rows, cut=cut, held=every)
    if cut > 1 and seq_len % cut == 0 and _cuts_rows(operator):
        yield from passes(seq_len // cut, rows=rows // cut)
    if cut > 1 and operator.function in SORTED_AGAIN:
        yield from _sorted_again(operator, block, rows, cut)


def _spread(
    operator: Operator, block: Block, tokens: int, parts: Sequence[int]
) -> Iterator[Operation]:
    """A product of experts where a rank holds a part of them, and has all rows or a
    part."""
    rows, every = _rows(operator, block, tokens), block.extents["experts"]
    for held in (every // part for part in parts if every % part == 0):
        for some in (rows // part for part in parts if tokens % part == 0):
            yield from _passes(operator, block, tokens, rows=some, held=held)


def _sorted_again(
    operator: Operator, block: Block, rows: int, cut: int
) -> Iterator[Operation]:
    """Sorting what other ranks sent, or undoing it, of all rows and of a part."""
    experts = block.extents["experts"]
    for some in (rows, rows // cut):
        for direction in (FORWARD, BACKWARD):
            yield Operation(
                kind=SORTED_AGAIN[operator.function],
                direction=direction,
                shape=(some, block.extents["hidden"]),
                pieces=(max(experts // cut, 1),),
            )


def _rows(operator: Operator, block: Block, tokens: int) -> int:
    """Rows of *operator* for so many *tokens*: as often as they are routed."""
    exchanged = operator.function in SORTED_AGAIN
    routed = exchanged or "routed" in operator.output.dims
    return tokens * block.extents["routed"] if routed else round(tokens * operator.rows)


def _cuts_rows(operator: Operator) -> bool:
    """Whether it runs on a part of the rows; products with a width on tp do not."""
    whole = {operator.contracted, *operator.columns} <= _WHOLE
    return kind_of(operator) not in _NEVER_CUT_ROWS or whole


def _extent(block: Block, name: str, cut: int) -> int:
    if "+" in name:
        return sum(_extent(block, part, cut) for part in name.split("+"))
    return block.extents[name] // (1 if name in _WHOLE else cut)


def _cuts_widths(operator: Operator, block: Block, cut: int) -> bool:
    """Whether *cut* divides every width of *operator* that is ever cut."""
    if operator.sizes:
        return cut == 1
    if operator.function in OF_HEADS:
        return block.heads % cut == 0 and block.kv_heads % cut == 0
    widths = {*operator.columns, operator.contracted, *operator.output.dims}
    widths |= {name for tensor in operator.inputs for name in tensor.dims}
    names = {part for width in widths if width for part in width.split("+")}
    for name in names & block.extents.keys() - _WHOLE:
        unit = block.head_dim if name in ("query", "key_value") else 1
        per_key = 2 if name == "key_value" else 1
        if block.extents[name] // (unit * per_key) % cut:
            return False
    return True


def _passes(
    operator: Operator,
    block: Block,
    seq_len: int,
    *,
    rows: int,
    batch: int = 1,
    cut: int = 1,
    held: int = 1,
) -> Iterator[Operation]:
    """Forward and backward on so many *rows*, of widths *cut* in parts, with so many
    experts *held*."""
    kind, shape = operator_shape(
        operator,
        block,
        batch=batch,
        rows=rows,
        extent=lambda name: _extent(block, name, cut),
        held=held,
    )
    ways: tuple[str, ...] = (FORWARD, BACKWARD)
    if kind in PRODUCTS:
        ways = (FORWARD, BACKWARD_INPUT, BACKWARD_WEIGHT)
    for direction in ways:
        yield Operation(
            kind=kind,
            direction=direction,
            shape=shape,
            variant=_variant(operator, block),
            pieces=_pieces(operator, block, seq_len, shape),
        )


def _variant(operator: Operator, block: Block) -> str:
    names = {item.function for item in block.operators}
    if operator.function == "qk-norm":
        return next(name for name in NORMS if name in names)
    if operator.function == "attention":
        return "separate" if names & {"qk-norm", "rotary"} else ""
    return "bias" if operator.bias else ""


def _pieces(
    operator: Operator, block: Block, seq_len: int, shape: tuple[int, ...]
) -> tuple[int, ...]:
    if operator.function == "positions":
        return seq_len, max(block.extents["positions"], seq_len)
    if operator.function == "dispatch":
        return (block.extents["experts"],)
    if operator.function == "rotary":  # how many of its heads are keys
        return (shape[2] * block.kv_heads // (block.heads + block.kv_heads),)
    return ()

"""What the stages of columns hold: atoms gathered by row and summed over layers.

Rows that differ in data parallelism, schedule or ZeRO alone hold the same: they are
gathered and summed once.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from costmodel.atom_book import ATOM, SITE, AtomBook, as_atom, unique_rows
from costmodel.atoms import Atom
from costmodel.columns import SQRT, Columns
from costmodel.contents import Contents, Part, contents_of
from costmodel.layer_runs import Run, stage_runs
from costmodel.retention import Retention
from costmodel.segments import counted, inner, longest
from profiles.errors import Unsupported

Array = NDArray[Any]
Segments = tuple[int, int]  # the fewest and the most layers of the longest segment
_ALIKE = (*SITE, "recompute", "pp", "virtual_stages")


@dataclass(kw_only=True)
class Gather:
    """The first stage, runs of equal middle ones and the last, of every row."""

    columns: Columns
    book: AtomBook
    lengths: Segments | None = None

    def contents(self) -> tuple[Contents, ...]:
        """A virtual stage of each run of every row."""
        _, of_row = self._alike
        return tuple(one.take(of_row) for one in self._contents)

    def counts(self) -> tuple[Array, ...]:
        """How many virtual stages each run of every row has."""
        _, of_row = self._alike
        return tuple(run.count[of_row] for run in self._runs)

    @cached_property
    def _alike(self) -> tuple[Array, Array]:
        """A row of each distinct kind, and each row's place among them."""
        _, of_row = unique_rows([getattr(self.columns, name) for name in _ALIKE])
        first = np.empty(of_row.max(initial=-1) + 1, dtype=np.int64)
        first[of_row] = np.arange(len(of_row))
        return first, of_row

    @cached_property
    def _own(self) -> dict[str, Array]:
        """One row of each kind."""
        first, _ = self._alike
        return {name: getattr(self.columns, name)[first] for name in _ALIKE}

    @cached_property
    def _sites(self) -> Array:
        return self.book.sites(self._own)

    @cached_property
    def _stages(self) -> Array:
        return np.asarray(self._own["pp"] * self._own["virtual_stages"])

    @cached_property
    def _runs(self) -> tuple[Run, ...]:
        return stage_runs(self.book.job.graph, self._stages)

    @property
    def _contents(self) -> tuple[Contents, ...]:
        whole = (self._stages == 1).astype(int)
        nothing = np.zeros_like(whole)
        first, *middle, last = self._runs
        return (
            self._stage(first, nothing + 1, whole),
            *(self._stage(run, nothing, nothing) for run in middle),
            self._stage(last, nothing, nothing + 1),
        )

    def _stage(self, run: Run, first: Array, last: Array) -> Contents:
        """A stage of *run*, which may be the *first* and the *last* of its pipeline."""
        body: list[Part] = [(run.layers[name], one) for name, one in self._body.items()]
        segments: list[list[Part]] = []
        if self.lengths is not None:
            body, segments = self._leanest(run, *self.lengths)
        elif (self._own["recompute"] == SQRT).any():
            body, segments = self._segments(run)
        both = first * last
        ends = zip((first, last, last, -both), self._ends, strict=True)
        alone = [(first + last - 2 * both, one) for one in self._tied]
        return contents_of([*body, *ends, *alone], self.book.policy, segments)

    @cached_property
    def _body(self) -> dict[str, Atom]:
        """Of each kind of numbered layer."""
        graph, chosen = self.book.job.graph, self._own["recompute"]
        return {
            name: self._atoms(name, self.columns.recomputes, chosen)
            for name in graph.kinds
        }

    @cached_property
    def _ends(self) -> tuple[Atom, ...]:
        """Embedding, norm and head, and the parameter that the ends share."""
        nothing = np.zeros_like(self._stages)
        names = ("embedding", "final_norm", "head")
        found = (self._atoms(name, ("none",), nothing) for name in names)
        return (*found, as_atom(self.book.shared(self._sites)))

    @cached_property
    def _tied(self) -> tuple[Atom, ...]:
        """What ends that are apart sum of that parameter; who has nothing away does
        not ask."""
        if not (self.book.job.graph.tied and self.book.offload.optimizer):
            return ()
        return (as_atom(self.book.tied(self._sites)),)

    def _atoms(
        self, name: str, treatments: tuple[str | Retention, ...], chosen: Array
    ) -> Atom:
        return as_atom(self.book.atoms(name, self._sites, treatments, chosen))

    def _segments(self, run: Run) -> tuple[list[Part], list[list[Part]]]:
        """The numbered layers of a stage, where some rows make them again in segments:
        the layers that keep their input and those inside, and the longest segment.

        Raises Unsupported where layers are of several kinds: which of them keep their
        input hangs on their order.
        """
        if len(run.layers) > 1:
            raise Unsupported(
                f"recompute sqrt of {self.book.job.model}, whose layers are of several "
                f"kinds ({', '.join(run.layers)}), is not searched; simulate prices it"
            )
        ((name, count),) = run.layers.items()
        redone = self._own["recompute"] == SQRT
        begins = np.where(redone, counted(count), count)
        whole, inside = self._body[name], self._inside[name]
        length = np.where(redone, longest(count), 0)
        return (
            [(begins, whole), (count - begins, inside)],
            [_segment(length, whole, inside)],
        )

    def _leanest(
        self, run: Run, fewest: int, most: int
    ) -> tuple[list[Part], list[list[Part]]]:
        """No more than the numbered layers of a stage keep and need, whatever each
        makes again, where the longest segment has *fewest* to *most* layers.

        Nothing keeps less than an input a segment; layers of several kinds are not
        joined. A layer may keep a little more than its input, and have that less to
        make again.
        """
        body, segments = [], []
        kinds = sum((count > 0).astype(int) for count in run.layers.values())
        for name, count in run.layers.items():
            whole = self._fully[name]
            if most == 1:
                input_bytes = whole.saved_bytes
                whole = replace(
                    whole,
                    dropped_bytes=whole.dropped_bytes - input_bytes,
                    backward_working_bytes=whole.backward_working_bytes - input_bytes,
                )
                body.append((count, whole))
                continue
            inside = self._inside[name]
            begins = np.where(kinds == 1, -(-count // most), count)
            length = np.minimum(count, fewest) * (kinds == 1)
            body += [(begins, whole), (count - begins, inside)]
            segments.append(_segment(length, whole, inside))
        return body, segments

    @cached_property
    def _fully(self) -> dict[str, Atom]:
        """Of each kind of numbered layer, made again whole."""
        nothing = np.zeros_like(self._stages)
        return {
            name: self._atoms(name, ("full",), nothing)
            for name in self.book.job.graph.kinds
        }

    @cached_property
    def _inside(self) -> dict[str, Atom]:
        """Of layers inside a segment, in the rows that have some; nothing in others."""
        some = self._own["recompute"] == SQRT if self.lengths is None else slice(None)
        rows = np.arange(len(self._stages))[some]
        found = {}
        for name, block in self.book.job.graph.kinds.items():
            table = np.zeros((len(ATOM), len(self._stages)))
            table[:, rows] = self.book.atoms(
                name, self._sites[rows], (inner(block),), np.zeros_like(rows)
            )
            found[name] = as_atom(table)
        return found


def _segment(length: Array, first: Atom, inside: Atom) -> list[Part]:
    """The *first* layer of a segment of so many, and those *inside*."""
    return [(np.minimum(length, 1), first), (np.maximum(length - 1, 0), inside)]

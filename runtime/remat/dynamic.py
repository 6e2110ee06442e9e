"""Dynamic tensor rematerialization: saved tensors within a budget, whatever is run.

forward    every operator is recorded with what it read (`_Recorder`); what autograd
           saves is kept, and where that is more than the budget the tensor of the least
           h is let go                                              → Rematerializer
backward   what is not there is made again by its operator, and before it what that
           reads, as far back as something is there

    h = (c + Σ c of the neighbourhood that is not there) / (size · staleness)

After Kirisame et al. (ICLR 2021); seconds are measured as operators run. Random numbers
are drawn once: what an operator drew stays. Numbers change nowhere, as each operator
runs again on what it read.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from weakref import WeakSet

import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map_only

from profiles.errors import Unsupported
from runtime.remat.saved_tensors import Geometry, flat_storage

SECONDS = 1e-7  # of an operator at least: a clock has no zeros


Make = Callable[[dict["_Made", list[Tensor]]], list[Tensor]]


class _Made:
    """What one operator made: how it is made again, and what of it is kept.

    `kept` are storages by the number of the output; `saved` how often each is in
    autograd's hands.
    """

    def __init__(self, make: Make | None, parents: dict[_Made, set[int]]) -> None:
        self.make, self.parents = make, parents  # and which outputs of them it reads
        self.children: WeakSet[_Made] = WeakSet()
        self.kept: dict[int, Tensor] = {}
        self.saved: dict[int, int] = {}
        self.seconds, self.used_s = SECONDS, 0.0
        for one in parents:
            one.children.add(self)

    @property
    def gone(self) -> bool:
        return not self.kept and self.make is not None

    @property
    def size_bytes(self) -> int:
        return sum(one.nbytes for one in self.kept.values())


class _Value:
    """An operator's tensor among another's arguments: its place in its storage."""

    def __init__(self, made: _Made, number: int, geometry: Geometry) -> None:
        self.made, self.number, self.geometry = made, number, geometry


class _Box:
    """What autograd holds in place of a saved tensor."""

    def __init__(self, value: _Value, of: Rematerializer) -> None:
        self._value, self._of = value, of
        made = value.made
        made.saved[value.number] = made.saved.get(value.number, 0) + 1

    def get(self) -> Tensor:
        value = self._value
        return value.geometry.of(self._of.again(value.made, value.number))

    def __del__(self) -> None:
        self._of.released(self._value.made, self._value.number)


class Rematerializer:
    """Keeps what all passes save within *budget_bytes*, as far as it can be remade."""

    def __init__(self, budget_bytes: float) -> None:
        self._budget = budget_bytes
        self._keeping: set[_Made] = set()
        self.kept_bytes = self.most_bytes = self.largest_bytes = 0
        self.evicted = self.remade = 0  # operators

    @contextmanager
    def recording(self) -> Iterator[None]:
        """Around a forward whose saved tensors are kept so."""
        recorder = _Recorder()

        def boxed(tensor: Tensor) -> _Box | Tensor:
            value = recorder.value(tensor)
            if value is None:  # a parameter, or what came in
                return tensor
            box = _Box(value, self)
            self._keep(value.made, value.number, flat_storage(tensor.detach()))
            self._evict(value.made)
            return box

        def back(held: _Box | Tensor) -> Tensor:
            return held.get() if isinstance(held, _Box) else held

        with saved_tensors_hooks(boxed, back), recorder:
            yield

    def again(self, made: _Made, number: int) -> Tensor:
        """The storage of an output, remade where it is not there."""
        if number not in made.kept:
            with torch.no_grad():
                self._remake(made)
            self._evict(made)
        made.used_s = time.perf_counter()
        return made.kept[number]

    def released(self, made: _Made, number: int) -> None:
        """Autograd needs one box of it less."""
        made.saved[number] -= 1
        if not made.saved[number]:
            del made.saved[number]
            if number in made.kept and made.make is not None:
                self.kept_bytes -= made.kept.pop(number).nbytes
            if not made.kept:
                self._keeping.discard(made)

    def _keep(self, made: _Made, number: int, flat: Tensor) -> None:
        made.used_s = time.perf_counter()
        if number not in made.kept:
            made.kept[number] = flat
            self.kept_bytes += flat.nbytes
            self.largest_bytes = max(self.largest_bytes, made.size_bytes)
            self._keeping.add(made)

    def _evict(self, needed: _Made) -> None:
        while self.kept_bytes > self._budget:
            free = [one for one in self._keeping if one.make and one is not needed]
            if not free:
                break
            now = time.perf_counter()
            one = min(free, key=lambda made: _h(made, now))
            self.kept_bytes -= one.size_bytes
            one.kept.clear()
            self._keeping.discard(one)
            self.evicted += 1
        self.most_bytes = max(self.most_bytes, self.kept_bytes)

    def _remake(self, made: _Made) -> None:
        """Run its operator, and before it those that made what is not there; what they
        make and autograd does not hold is let go."""
        there: dict[_Made, list[Tensor]] = {}
        waiting = [made]
        while waiting:
            one = waiting[-1]
            missing = [
                parent
                for parent, numbers in one.parents.items()
                if parent not in there and not numbers <= parent.kept.keys()
            ]
            if missing:
                waiting += missing
                continue
            waiting.pop()
            if one not in there:
                assert one.make is not None, "what cannot be remade is kept"
                there[one] = one.make(there)
                self.remade += 1
        for one, flats in there.items():
            for number in one.saved:
                self._keep(one, number, flats[number])


def _h(made: _Made, now_s: float) -> float:
    seconds = made.seconds + sum(one.seconds for one in _neighbourhood(made))
    return seconds / (made.size_bytes * max(now_s - made.used_s, SECONDS))


def _neighbourhood(made: _Made) -> set[_Made]:
    """What is not there and would be remade with it, or needs it to be."""
    found: set[_Made] = set()
    for upward in (True, False):
        waiting = [made]
        while waiting:
            one = waiting.pop()
            for other in one.parents if upward else list(one.children):
                if other.gone and other not in found:
                    found.add(other)
                    waiting.append(other)
    return found


class _Recorder(TorchDispatchMode):
    """Records the operators of one forward by the storages that they make."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._known: dict[int, tuple[StorageWeakRef, _Made, int]] = {}

    def value(self, tensor: Tensor) -> _Value | None:
        """Whose it is; None for what no operator here made."""
        known = self._known.get(tensor.untyped_storage()._cdata)
        if known is None:
            return None
        _, made, number = known
        return _Value(made, number, Geometry(tensor))

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        began = time.perf_counter()
        found = func(*args, **kwargs)
        seconds = time.perf_counter() - began
        self._require_pure(func, args)
        outputs = [one for one in tree_leaves(found) if isinstance(one, Tensor)]
        fresh = [
            one for one in outputs if one.untyped_storage()._cdata not in self._known
        ]
        read = {
            one.untyped_storage()._cdata
            for one in tree_leaves((args, kwargs))
            if isinstance(one, Tensor)
        }
        fresh = [one for one in fresh if one.untyped_storage()._cdata not in read]
        if fresh:
            self._record(func, args, kwargs, outputs, fresh, seconds)
        return found

    def _record(
        self,
        func: Any,
        args: Any,
        kwargs: Any,
        outputs: list[Tensor],
        fresh: list[Tensor],
        seconds: float,
    ) -> None:
        parents: dict[_Made, set[int]] = {}

        def placed(one: Tensor) -> _Value | Tensor:
            value = self.value(one)
            if value is not None:
                parents.setdefault(value.made, set()).add(value.number)
            return one.detach() if value is None else value

        given = tree_map_only(Tensor, placed, (args, kwargs))
        drawn = torch.Tag.nondeterministic_seeded in func.tags

        def make(there: dict[_Made, list[Tensor]]) -> list[Tensor]:
            def value(one: _Value) -> Tensor:
                made = one.made
                flat = there[made] if made in there else made.kept  # noqa: SIM401
                return one.geometry.of(flat[one.number])

            some, named = tree_map_only(_Value, value, given)
            again = func(*some, **named)
            leaves = [one for one in tree_leaves(again) if isinstance(one, Tensor)]
            return [flat_storage(one) for one in leaves]

        made = _Made(None if drawn else make, parents)
        made.seconds = max(seconds, SECONDS)
        for one in fresh:
            number = next(n for n, other in enumerate(outputs) if other is one)
            storage = one.untyped_storage()
            self._known[storage._cdata] = StorageWeakRef(storage), made, number
            if drawn:
                made.kept[number] = flat_storage(one.detach())

    def _require_pure(self, func: Any, args: Any) -> None:
        """Raise Unsupported for what cannot run again."""
        if func.namespace == "c10d":
            raise Unsupported(
                "--recompute dtr runs operators again on one rank alone, and a forward "
                "here speaks to others; choose layouts with tp 1, cp 1 and ZeRO 0"
            )
        if not func._schema.is_mutable:
            return
        for given, argument in zip(args, func._schema.arguments, strict=False):
            written = argument.alias_info is not None and argument.alias_info.is_write
            if written and isinstance(given, Tensor):
                value = self.value(given)
                if value is None:
                    continue
                if len(value.made.children):
                    raise Unsupported(
                        f"--recompute dtr: {func} changes a tensor that was read "
                        "before; write it to another one"
                    )
                value.made.make = None  # as it is now, it can be made by nobody
                value.made.kept[value.number] = flat_storage(given.detach())

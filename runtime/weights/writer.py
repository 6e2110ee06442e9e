"""`save_weights`: what a layout trained, as a folder that `transformers` loads.

Each stage's first rank gathers its parameters one bond at a time and writes them in
files of some gigabytes; the folder has its name when all are there.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import torch
from torch import Tensor, nn

from profiles.errors import Contradiction, InvalidFile
from profiles.files import require_folder, require_package, shown, write_text
from profiles.models import DecoderSpec, Job, ModuleSpec
from profiles.units import GB
from runtime.checkpoint import buffers, everywhere, first_rank, held, rank_and_world
from runtime.weights.config import config_of
from runtime.weights.expected import OwnModule, of_decoder
from runtime.weights.folder import CONFIG, INDEX, ONE, WeightsFolder, opened
from runtime.weights.names import Bond

FILE_BYTES: Final = 4 * GB
TOKENIZER: Final = (
    *("tokenizer.json", "tokenizer_config.json", "tokenizer.model", "vocab.json"),
    *("merges.txt", "special_tokens_map.json", "added_tokens.json"),
    *("chat_template.jinja", "generation_config.json"),
)
Named = tuple[str, dict[str, int]]  # a file, and the bytes of each tensor in it


@dataclass(frozen=True, slots=True, kw_only=True)
class Export:
    """A folder to be written: its *bonds* with what trains, its *config*, and the
    folder (*of*) that tokenizer files come from, where there are such."""

    path: Path
    bonds: Sequence[Bond]
    config: Mapping[str, Any] | None
    of: Path | None = None

    @property
    def partial(self) -> Path:
        return self.path.with_name(f"{self.path.name}.partial")


def exported(weights: str | None, save: str | None, job: Job) -> Export | None:
    """Where `--save-weights` writes the model of *job*, with the configuration of its
    `--weights`; None where nothing is to be written.

    Raises what is wrong with either.
    """
    folder = None if weights is None else weights_of(job, Path(weights))
    if save is None:
        return None
    path, spec = Path(save), job.spec
    _require_new(path)
    of = None if folder is None else folder.path
    if isinstance(spec, ModuleSpec):
        own = OwnModule.of(spec)
        found, of = own.expected.bonds, of or own.source
        return Export(path=path, bonds=found, config=own.config, of=of)
    assert isinstance(spec, DecoderSpec)  # others do not run
    if folder is not None:
        found, config = folder.expected.bonds, folder.config
        return Export(path=path, bonds=found, config=config, of=of)
    made = config_of(job, spec)
    found = of_decoder(spec, made["model_type"]).bonds
    return Export(path=path, bonds=found, config=made)


def weights_of(job: Job, path: Path) -> WeightsFolder:
    """The folder at *path*, of the model of *job*; raises what is wrong with it."""
    spec = job.spec
    if isinstance(spec, ModuleSpec):
        return WeightsFolder.of_module(path, OwnModule.of(spec))
    folder = WeightsFolder.read(path)
    assert isinstance(spec, DecoderSpec)  # others do not run
    folder.require_of(spec)
    return folder


def _require_new(path: Path) -> None:
    """Raise where *path* cannot be made, or holds something."""
    require_package("safetensors", f"--save-weights {shown(path)}", extra="runtime")
    if path.exists() and (not path.is_dir() or any(path.iterdir())):
        raise Contradiction(
            f"--save-weights {shown(path)} is there already; name a folder that is not"
        )
    require_folder(path.parent, "--save-weights")


def save_weights(export: Export, parts: Sequence[nn.Module], *, writes: bool) -> None:
    """Write the tensors of *parts*; every rank calls this at once, and of those that
    hold the same stage one *writes*.

    Raises InvalidFile, on every rank, where that is not possible; nothing is left then.
    """
    first_rank(lambda: _begin(export.partial))
    rank, _ = rank_and_world()
    files = _Files(export.partial, rank, writes)
    try:
        made = everywhere(lambda: _written(files, export.bonds, parts))
        named = [one for some in made for one in some]
        first_rank(lambda: _finish(export, named, _dtype(parts)))
    except BaseException:
        if rank == 0:
            shutil.rmtree(export.partial, ignore_errors=True)
        raise


def _dtype(parts: Sequence[nn.Module]) -> str:
    """Of the weights, as a configuration calls it."""
    return str(next(parts[0].parameters()).dtype).removeprefix("torch.")


def _begin(partial: Path) -> None:
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)


@dataclass(slots=True)
class _Files:
    """Files that one rank writes, of tensors as they come."""

    folder: Path
    rank: int
    writes: bool
    written: list[Named] = field(default_factory=list)
    _waiting: dict[str, Tensor] = field(default_factory=dict)
    _bytes: int = 0

    def add(self, name: str, tensor: Tensor) -> None:
        if self._bytes + tensor.nbytes > FILE_BYTES:
            self.flush()
        self._waiting[name] = tensor.contiguous()
        self._bytes += tensor.nbytes

    def flush(self) -> None:
        """Write what waits."""
        if not self._waiting:
            return
        name = f"part-{self.rank:05d}-{len(self.written):05d}.safetensors"
        _save(self._waiting, self.folder / name)
        self.written.append((name, {k: v.nbytes for k, v in self._waiting.items()}))
        self._waiting, self._bytes = {}, 0


def _written(
    files: _Files, bonds: Sequence[Bond], parts: Sequence[nn.Module]
) -> list[Named]:
    """Gather every tensor on the ranks that hold it; those that write do."""
    here = {one.name: one.whole for one in held(parts)}
    here |= {name: one.clone for name, one in buffers(parts)}
    failed: InvalidFile | None = None
    for bond in bonds:
        if bond.reads or not all(name in here for name in bond.ours):
            continue
        ours = [here[name]() for name in bond.ours]
        if not files.writes or failed is not None:
            continue
        try:
            for name, tensor in _theirs(bond, ours):
                files.add(name, tensor)
        except InvalidFile as error:  # the others still gather with this rank
            failed = error
    if failed is not None:
        raise failed
    files.flush()
    return files.written


def _theirs(bond: Bond, ours: list[Tensor]) -> Iterator[tuple[str, Tensor]]:
    made = bond.part([one.cpu() for one in ours])
    for name, tensor in zip(bond.theirs, made, strict=True):
        # A copy of its own: `safetensors` writes no tensor that shares its storage.
        yield name, tensor.clone(memory_format=torch.contiguous_format)


def _finish(export: Export, named: Sequence[Named], dtype: str) -> None:
    """One file where all fit, else an index; configuration and tokenizer; the name."""
    partial = export.partial
    every = {name: size for _, sizes in named for name, size in sizes.items()}
    total = sum(every.values())
    if total <= FILE_BYTES:
        _into_one(partial, named)
    else:
        _indexed(partial, named, total)
    if export.config is not None:
        config = {k: v for k, v in export.config.items() if k != "dtype"}
        text = json.dumps({**config, "torch_dtype": dtype}, indent=2)
        write_text(partial / CONFIG, text)
    for name in TOKENIZER if export.of is not None else ():
        assert export.of is not None
        if (export.of / name).is_file():
            shutil.copyfile(export.of / name, partial / name)
    if export.path.exists():
        export.path.rmdir()  # empty: looked at before
    partial.rename(export.path)


def _save(tensors: dict[str, Tensor], file: Path) -> None:
    from safetensors import SafetensorError
    from safetensors.torch import save_file

    try:
        save_file(tensors, file, metadata={"format": "pt"})
    except (SafetensorError, OSError) as error:
        lines = str(error).splitlines() or [type(error).__name__]
        raise InvalidFile(f"{shown(file)} cannot be written: {lines[0]}") from error


def _into_one(partial: Path, named: Sequence[Named]) -> None:
    if len(named) == 1:
        (partial / named[0][0]).rename(partial / ONE)
        return
    tensors: dict[str, Tensor] = {}
    for file, sizes in named:
        with opened(partial / file) as found:
            tensors |= {name: found.get_tensor(name) for name in sizes}
    _save(tensors, partial / ONE)
    for file, _ in named:
        (partial / file).unlink()


def _indexed(partial: Path, named: Sequence[Named], total: int) -> None:
    places: dict[str, str] = {}
    for number, (file, sizes) in enumerate(named, 1):
        name = f"model-{number:05d}-of-{len(named):05d}.safetensors"
        (partial / file).rename(partial / name)
        places |= dict.fromkeys(sizes, name)
    index = {"metadata": {"total_size": total}, "weight_map": places}
    write_text(partial / INDEX, json.dumps(index, indent=2))

"""A folder as Hugging Face writes it: `config.json`, and tensors in safetensors files.

It comes from a stranger. Its files are named by an index, or there is one; a name leads
nowhere else, and nothing in them can run: folders that have pickled tensors alone are
refused.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Final

from torch import Tensor

from profiles.errors import Contradiction, InvalidFile, Unsupported
from profiles.files import read_json, require_package, shown
from profiles.models import DecoderSpec, parse_config
from runtime.weights.names import COMPUTED, PREFIX, Bond, Shape, bonds

CONFIG: Final = "config.json"
ONE: Final = "model.safetensors"
INDEX: Final = f"{ONE}.index.json"
FLOATS: Final = ("F64", "F32", "F16", "BF16")
# What changes no weight and no loss without dropout: a folder may say otherwise.
_FREE: Final = ("dropout", "attention_dropout", "embedding_dropout", "balance")


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightsFolder:
    """What is in *path*: *files* has the file of each tensor, by the name that a bond
    has of it; *prefix* is what the folder leaves out of those names."""

    path: Path
    config: Mapping[str, Any]
    spec: DecoderSpec
    files: Mapping[str, str]
    prefix: str = ""

    @property
    def kind(self) -> str:
        return str(self.config["model_type"])

    @classmethod
    def read(cls, path: Path) -> WeightsFolder:
        """Looks at names and shapes alone.

        Raises InvalidFile for what is damaged or missing, Unsupported for a model or
        tensors that are not trained.
        """
        require_package("safetensors", f"--weights {shown(path)}", extra="runtime")
        config = read_json(path / CONFIG, what="the configuration of --weights,")
        spec = parse_config(config, what=shown(path / CONFIG), name=path.name).spec
        assert isinstance(config, dict)
        if not isinstance(spec, DecoderSpec):
            raise Unsupported(f"{shown(path)} holds no decoder; decoders are trained")
        named = {name: file for name, file in _files(path) if not computed(name)}
        front = PREFIX.get(config["model_type"], "")
        bare = not any(name.startswith(front) for name in named)
        prefix = front if bare else ""  # as the first GPT-2 was published
        known = {
            name if name.startswith("lm_head.") else f"{prefix}{name}": file
            for name, file in named.items()
        }
        found = cls(path=path, config=config, spec=spec, files=known, prefix=prefix)
        found._require_all()
        return found

    def bonds(self) -> Iterator[Bond]:
        return bonds(self.spec, self.kind)

    def tensors(self, names: Iterable[str]) -> list[Tensor]:
        """Whole tensors, on the CPU, by a bond's names for them."""
        found = []
        for name in names:
            with opened(self.path / self.files[name]) as file:
                found.append(file.get_tensor(self._theirs(name)))
        return found

    def require_of(self, spec: DecoderSpec) -> None:
        """Raise Contradiction where a model of *spec* is another one."""
        ours, theirs = plain(spec), plain(self.spec)
        for name in ours:
            if ours[name] != theirs[name]:
                raise Contradiction(
                    f"--weights {shown(self.path)} are of another model: {name} is "
                    f"{shown(theirs[name])} there and {shown(ours[name])} in the "
                    f"layout; plan with --model {shown(self.path)}"
                )

    def _theirs(self, name: str) -> str:
        return name.removeprefix(self.prefix)

    def _require_all(self) -> None:
        """Raise what is wrong with the names, shapes and types of the tensors."""
        wanted: dict[str, Shape] = {}
        for bond in self.bonds():
            wanted |= bond.theirs
        spare = {"lm_head.weight"} if self.spec.tied_embeddings else set()
        for what, names in (
            ("lacks", wanted.keys() - self.files.keys()),
            ("has an unknown tensor", self.files.keys() - wanted.keys() - spare),
        ):
            if names:
                first = sorted(map(self._theirs, names))[0]
                more = f" and {len(names) - 1} more" if len(names) > 1 else ""
                raise InvalidFile(
                    f"--weights {shown(self.path)} {what} {shown(first)}{more}, of a "
                    f"{self.kind} as its {CONFIG} says"
                )
        for name, shape in wanted.items():
            self._require_shaped(name, shape)

    def _require_shaped(self, name: str, shape: Shape) -> None:
        theirs = self._theirs(name)
        with opened(self.path / self.files[name]) as file:
            if theirs not in file.keys():  # noqa: SIM118 - it is no mapping
                raise InvalidFile(
                    f"{shown(self.path / self.files[name])} lacks {shown(theirs)}, "
                    f"which {INDEX} says is in it"
                )
            seen = file.get_slice(theirs)
            if tuple(seen.get_shape()) != shape:
                raise InvalidFile(
                    f"--weights {shown(self.path)}: {shown(theirs)} has shape "
                    f"{tuple(seen.get_shape())}, its {CONFIG} says {shape}"
                )
            if seen.get_dtype() not in FLOATS:
                raise Unsupported(
                    f"--weights {shown(self.path)}: {shown(theirs)} is "
                    f"{seen.get_dtype()}; weights of {', '.join(FLOATS)} are read"
                )


def computed(name: str) -> bool:
    """Whether a tensor is no parameter."""
    return name.endswith(COMPUTED)


def plain(spec: DecoderSpec) -> dict[str, Any]:
    """A spec's values that two folders of the same weights have alike."""
    found = asdict(replace(spec, dropout=0.0))
    numerics = {f"numerics {k}": v for k, v in found.pop("numerics").items()}
    return {
        name: value
        for name, value in {**found, **numerics}.items()
        if name.removeprefix("numerics ") not in _FREE
    }


def _files(path: Path) -> Iterator[tuple[str, str]]:
    """(tensor, file in *path*) of all that the folder says it has."""
    if (path / INDEX).is_file():
        index = read_json(path / INDEX, what="the index of --weights,")
        named = index.get("weight_map") if isinstance(index, dict) else None
        if not isinstance(named, dict) or not named:
            raise InvalidFile(f"{shown(path / INDEX)} has no weight_map")
        for name, file in named.items():
            if not isinstance(file, str) or Path(file).name != file:
                raise InvalidFile(
                    f"{shown(path / INDEX)} names {shown(file)}, which is no file "
                    "beside it"
                )
            yield name, file
        return
    if not (path / ONE).is_file():
        pickled = any(path.glob("*.bin")) or any(path.glob("*.pt*"))
        instead = (
            "; its pickled tensors can run code and are not read: convert them to "
            "safetensors"
            if pickled
            else ""
        )
        raise InvalidFile(
            f"--weights {shown(path)} has neither {ONE} nor {INDEX}{instead}"
        )
    with opened(path / ONE) as file:
        for name in file.keys():  # noqa: SIM118 - it is no mapping
            yield name, ONE


@contextmanager
def opened(file: Path) -> Iterator[Any]:
    """A safetensors file, of which tensors are read as they are asked for."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(file, framework="pt") as found:
            yield found
    except (SafetensorError, OSError) as error:
        lines = str(error).splitlines() or [type(error).__name__]
        raise InvalidFile(
            f"{shown(file)} cannot be read as safetensors: {lines[0]}"
        ) from error

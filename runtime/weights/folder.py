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
from runtime.weights.expected import Expected, OwnModule, of_decoder
from runtime.weights.names import Shape

CONFIG: Final = "config.json"
ONE: Final = "model.safetensors"
INDEX: Final = f"{ONE}.index.json"
FLOATS: Final = ("F64", "F32", "F16", "BF16")
# What changes no weight and no loss without dropout: a folder may say otherwise.
_FREE: Final = ("dropout", "attention_dropout", "embedding_dropout", "balance")


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightsFolder:
    """What is in *path*: *places* has the file of each tensor and its name there, by
    the name that a bond of what is *expected* has of it."""

    path: Path
    config: Mapping[str, Any]
    expected: Expected
    places: Mapping[str, tuple[str, str]]
    spec: DecoderSpec | None = None  # none of a user's module

    @classmethod
    def read(cls, path: Path) -> WeightsFolder:
        """A decoder's, by its configuration. Looks at names and shapes alone.

        Raises InvalidFile for what is damaged or missing, Unsupported for a model or
        tensors that are not trained.
        """
        require_package("safetensors", f"--weights {shown(path)}", extra="runtime")
        config = read_json(path / CONFIG, what="the configuration of --weights,")
        spec = parse_config(config, what=shown(path / CONFIG), name=path.name).spec
        assert isinstance(config, dict)
        if not isinstance(spec, DecoderSpec):
            raise Unsupported(f"{shown(path)} holds no decoder; decoders are trained")
        expected = of_decoder(spec, str(config["model_type"]))
        return cls._held(path, config, expected, spec)

    @classmethod
    def of_module(cls, path: Path, own: OwnModule) -> WeightsFolder:
        """A user's module's, by its own names; raises as `read`, and Contradiction for
        the configuration of another one."""
        require_package("safetensors", f"--weights {shown(path)}", extra="runtime")
        config: Any = {}
        if (path / CONFIG).is_file():
            config = read_json(path / CONFIG, what="the configuration of --weights,")
        if not isinstance(config, dict):
            raise InvalidFile(f"{shown(path / CONFIG)} is no configuration")
        own.require_alike(path, config)
        return cls._held(path, config, own.expected, None)

    @classmethod
    def _held(
        cls,
        path: Path,
        config: Mapping[str, Any],
        expected: Expected,
        spec: DecoderSpec | None,
    ) -> WeightsFolder:
        places = expected.known(dict(_files(path)))
        found = cls(
            path=path, config=config, expected=expected, places=places, spec=spec
        )
        found._require_all()
        return found

    def tensors(self, names: Iterable[str]) -> list[Tensor]:
        """Whole tensors, on the CPU, by a bond's names for them."""
        found = []
        for name in names:
            place, theirs = self.places[name]
            with opened(self.path / place) as file:
                found.append(file.get_tensor(theirs))
        return found

    def require_of(self, spec: DecoderSpec) -> None:
        """Raise Contradiction where a model of *spec* is another one."""
        assert self.spec is not None
        ours, theirs = plain(spec), plain(self.spec)
        for name in ours:
            if ours[name] != theirs[name]:
                raise Contradiction(
                    f"--weights {shown(self.path)} are of another model: {name} is "
                    f"{shown(theirs[name])} there and {shown(ours[name])} in the "
                    f"layout; plan with --model {shown(self.path)}"
                )

    def _require_all(self) -> None:
        """Raise what is wrong with the names, shapes and types of the tensors."""
        wanted: dict[str, Shape] = {}
        for bond in self.expected.bonds:
            wanted |= bond.theirs
        for what, names in (
            ("lacks", wanted.keys() - self.places.keys()),
            ("has an unknown tensor", self.places.keys() - wanted.keys()),
        ):
            if names:
                first = sorted(map(self._theirs, names))[0]
                more = f" and {len(names) - 1} more" if len(names) > 1 else ""
                raise InvalidFile(
                    f"--weights {shown(self.path)} {what} {shown(first)}{more}, "
                    f"{self.expected.said}"
                )
        for name, shape in wanted.items():
            self._require_shaped(name, shape)

    def _theirs(self, name: str) -> str:
        return self.places[name][1] if name in self.places else name

    def _require_shaped(self, name: str, shape: Shape) -> None:
        place, theirs = self.places[name]
        with opened(self.path / place) as file:
            if theirs not in file.keys():  # noqa: SIM118 - it is no mapping
                raise InvalidFile(
                    f"{shown(self.path / place)} lacks {shown(theirs)}, "
                    f"which {INDEX} says is in it"
                )
            seen = file.get_slice(theirs)
            if tuple(seen.get_shape()) != shape:
                raise InvalidFile(
                    f"--weights {shown(self.path)}: {shown(theirs)} has shape "
                    f"{tuple(seen.get_shape())}, {shape} {self.expected.said}"
                )
            counts = name in self.expected.counts
            if seen.get_dtype() not in FLOATS and not counts:
                raise Unsupported(
                    f"--weights {shown(self.path)}: {shown(theirs)} is "
                    f"{seen.get_dtype()}; weights of {', '.join(FLOATS)} are read"
                )


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

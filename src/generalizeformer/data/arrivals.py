"""Streams as files: the order in which images arrived, to be replayed anywhere.

An order is drawn alike by equal versions of torch and numpy; a stored one needs neither.
"""

import hashlib
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Int64
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from generalizeformer import atomic
from generalizeformer.config import from_dict
from generalizeformer.data.domains import Domain, DomainDataset
from generalizeformer.data.streams import Stream
from generalizeformer.data.targets import parse
from generalizeformer.errors import DataError

SAMPLE = 64  # images whose pixels are looked at, evenly spread over a domain


@dataclass(frozen=True)
class StoredStream(Stream):
    """A stream whose arrivals are read instead of drawn; it suits the dataset it was drawn from and no other."""

    rows: Int64[Tensor, "n 2"] = field(kw_only=True, compare=False, repr=False)
    domains: dict[str, list[int | str]] = field(kw_only=True, compare=False, repr=False)

    def arrivals(self, dataset: DomainDataset) -> Int64[Tensor, "n 2"]:
        """The stored pairs, once the dataset has shown the same domains."""
        for name, stored in self.domains.items():
            found = _print(dataset[name]) if name in dataset.names else None
            if found != stored:
                there = "no such domain" if found is None else f"{found[0]} images"
                if found and found[0] == stored[0]:
                    there = f"{found[0]} other images, or the same in another order"
                raise DataError(
                    f"stored stream: it was drawn from domain {name!r} of {stored[0]} images, but {dataset.name} "
                    f"has {there}; replay it on the dataset it is from, or draw a new one"
                )
        return self.rows


def save(path: Path, stream: Stream, dataset: DomainDataset) -> None:
    """The stream as a small file, which appears whole or not at all."""
    names = dict.fromkeys(parse(word, dataset.names).domain for word in stream.targets)
    about = {"stream": stream.fields(), "domains": {n: _print(dataset[n]) for n in names}}
    path.parent.mkdir(parents=True, exist_ok=True)
    with atomic.replacing(path) as partial:
        rows = stream.arrivals(dataset).contiguous()
        save_file({"arrivals": rows}, partial, {"about": json.dumps(about)})


def stored(path: Path) -> list[Path]:
    """The files that a path stands for: those of a folder in the order of their names, else the path itself."""
    if not path.is_dir():
        return [path]
    if files := sorted(path.glob("*.safetensors")):
        return files
    raise DataError(
        f"{path}: no stored stream (*.safetensors) in this folder; name the folder evaluation/streams of a run, or "
        "files of it"
    )


def load(path: Path) -> StoredStream:
    """The stream of a file that `save` wrote."""
    try:
        with safe_open(path, "pt") as content:
            about = json.loads((content.metadata() or {})["about"])
            rows = content.get_tensor("arrivals").clone()
        stream = from_dict(Stream, about["stream"])
        known: dict[str, Any] = {
            name: getattr(stream, name) for name in Stream.__dataclass_fields__
        }
        return StoredStream(**known, rows=rows, domains=about["domains"])
    except (OSError, SafetensorError, ValueError, KeyError, TypeError) as error:
        raise DataError(
            f"{path}: no readable stored stream ({error}); save the stream again"
        ) from None


def _print(domain: Domain) -> list[int | str]:
    """How many images a domain has, and a hash that is another where they are others or lie in another order."""
    labels = domain.labels.cpu().to(torch.int64).numpy().tobytes()
    return [len(domain), hashlib.sha256(labels + _identity(domain)).hexdigest()]


def _identity(domain: Domain) -> bytes:
    """What tells images from others: the names of their files, else the pixels of some."""
    if domain.files is not None:
        return "\n".join(domain.files).encode("utf-8", "surrogateescape")
    count = min(len(domain), SAMPLE)
    spread = torch.arange(count) * len(domain) // count
    return domain.read(spread).cpu().contiguous().numpy().tobytes()

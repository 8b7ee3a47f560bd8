"""What images records were made on: enough to tell others, and nothing that another processor decodes otherwise."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

from generalizeformer.data.domains import Domain
from generalizeformer.training._start import fingerprint

AT_ONCE = 256  # images that are read together
# Of 255. Processors decode and resize a pixel in a million to the next number, which moves the mean by a millionth.
ROUNDING = 0.002
_KNOWN: dict[Domain, "Shown"] = {}


@dataclass(frozen=True, kw_only=True)
class Shown:
    """A domain's images."""

    name: str
    count: int
    labels: str  # a digest
    mean: float  # of all pixels, 0 to 255

    @classmethod
    def of(cls, domain: Domain) -> "Shown":
        """Looked at once: a benchmark meets the same domains many times."""
        if domain not in _KNOWN:
            labels = fingerprint({"labels": domain.labels})
            _KNOWN[domain] = cls(
                name=domain.name, count=len(domain), labels=labels, mean=_mean(domain)
            )
        return _KNOWN[domain]

    def as_in(self, others: Mapping[str, "Shown"]) -> str | None:
        """None where it is the same among the others, else what it is there."""
        other = others.get(self.name)
        if other is None:
            return f"{self.name} is missing"
        if self.count != other.count:
            return f"{self.name} has {other.count} images, not {self.count}"
        if self.labels != other.labels:
            return f"{self.name} has other labels"
        near = abs(self.mean - other.mean) <= ROUNDING
        return None if near else f"{self.name} has other pixels"


def differences(there: Sequence[Shown], here: Sequence[Shown]) -> list[str]:
    """What is other here than there, domain by domain."""
    now, then = ({shown.name: shown for shown in some} for some in (here, there))
    changed = [words for shown in there if (words := shown.as_in(now))]
    return changed + [f"{name} was not there" for name in now.keys() - then.keys()]


def _mean(domain: Domain) -> float:
    total, pixels = 0, 0
    for places in torch.split(torch.arange(len(domain)), AT_ONCE):
        images = domain.read(places)  # a domain may be larger than memory
        total, pixels = total + int(images.sum(dtype=torch.int64)), pixels + images.numel()
    return total / max(pixels, 1)

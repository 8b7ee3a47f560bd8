"""The smallest benchmark there is: three domains, two steps a stage."""

from typing import Any

from lightning_fabric import Fabric

from generalizeformer.benchmark.cells import Cell
from generalizeformer.benchmark.plans import left_out, plan, recipes
from generalizeformer.core.generators import channels, rows
from generalizeformer.core.preprocessing import Preprocessing
from generalizeformer.core.settings import Config
from generalizeformer.data.datasets import synthetic
from generalizeformer.data.domains import DomainDataset
from generalizeformer.training import erm, meta
from generalizeformer.training._recipe import Recipe

META = meta.Config(steps=2, images=8, sizes=(4,), every=1, validation_sizes=(4,))
MAIN = Recipe(
    model=Config(generator=channels.Config(layers=1, width=8, heads=2)),
    erm=erm.Config(steps=2, per_domain=6, learning_rate=1e-2, every=1),
    meta=META,
)
PAPER = Recipe(
    model=Config(generator=rows.Config(layers=1, width=16, heads=2, feedforward=16)),
    episodes="looks",
    meta=META,
)


def domains(count: int = 3) -> DomainDataset:
    return synthetic.build(synthetic.Config(domains=count, classes=3, per_class=5, size=16))


def fabric() -> Fabric:
    return Fabric(accelerator="cpu", devices=1)


def cells(**changes: Any) -> list[Cell]:
    given: dict[str, Any] = {
        "targets": ("a",),
        "seeds": (0,),
        "trainings": ("generalizeformer",),
        "batch_sizes": (4,),
        "backbone": "digits-small",
        "pretrained": False,
        "preprocessing": Preprocessing(size=16),
    }
    given |= changes
    data = given.pop("domains", domains())
    return plan(data, recipes(MAIN, PAPER), left_out(data, given.pop("targets")), **given)

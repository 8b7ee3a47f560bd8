"""A small model, a small dataset, and records made by hand."""

from typing import Any

import torch

from generalizeformer import catalog
from generalizeformer.adapters._companion import COMPANIONS
from generalizeformer.benchmark.records import Record
from generalizeformer.core.backbones import DigitNet
from generalizeformer.core.card import Card
from generalizeformer.core.generalizeformer import GeneralizeFormer
from generalizeformer.core.generators import channels
from generalizeformer.core.preprocessing import Preprocessing
from generalizeformer.core.settings import Config
from generalizeformer.data.datasets import synthetic
from generalizeformer.data.domains import DomainDataset


def dataset() -> DomainDataset:
    return synthetic.build(synthetic.Config(domains=2, classes=3, per_class=7, size=8))


def source() -> GeneralizeFormer:
    """A model whose φ moves: a fresh one would answer like the source."""
    torch.manual_seed(0)
    card = Card(classes=tuple("012"), preprocessing=Preprocessing(size=8))
    config = Config(generator=channels.Config(layers=1, width=8, heads=2))
    model = GeneralizeFormer(DigitNet(3, (4, 6), channels=3), config, card).eval()
    with torch.no_grad():
        model.backbone.classifier.weight.mul_(20)
        for value in model.generator.parameters():
            value.add_(0.1 * torch.randn_like(value))
    for name in catalog.names(COMPANIONS):  # as they are before any training
        network = catalog.load(COMPANIONS, name).build(model.backbone, model.classes)
        model.companions[name] = network.state_dict()
    return model


def taught() -> GeneralizeFormer:
    """A model that has learned a little, so that its answers differ and are not all right."""
    model, domain = source(), dataset()["a"]
    images = model.card.preprocessing(domain.images)
    model.backbone.classifier.weight.data.div_(20)
    optimizer = torch.optim.Adam(model.backbone.parameters(), 0.02)
    model.backbone.train()
    for _ in range(12):
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model.backbone(images), domain.labels).backward()
        optimizer.step()
    model.backbone.eval()
    return model.eval()


def record(**changes: Any) -> Record:
    defaults: dict[str, Any] = {
        "method": "source",
        "targets": ("a",),
        "batch_size": 20,
        "seed": 0,
        "run_seed": 0,
        "images": 10,
        "accuracy": 50.0,
        "by_target": {"a": 50.0},
        "seconds": 0.1,
    }
    return Record(**(defaults | changes))

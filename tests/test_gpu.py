"""On a GPU: the same laws, and training in mixed precision. Run with `pytest -m gpu`."""

from pathlib import Path

import pytest
import torch
import torchvision
from lightning_fabric import Fabric

from generalizeformer import Config, GeneralizeFormer, Recipe
from generalizeformer.core import maps
from generalizeformer.core.backbones import build_backbone
from generalizeformer.core.card import Card
from generalizeformer.core.generators import channels, rows
from generalizeformer.core.preprocessing import Preprocessing
from generalizeformer.data.datasets import digits
from generalizeformer.data.domains import Domain, DomainDataset
from generalizeformer.training._loop import Stage, fit
from generalizeformer.training._run import train_recipe
from generalizeformer.training._start import fingerprint, placed
from generalizeformer.training.erm import Config as ErmConfig
from generalizeformer.training.erm import Erm
from generalizeformer.training.meta import Config as MetaConfig

pytestmark = pytest.mark.gpu

GENERATORS = {
    "channels": channels.Config(width=16),
    "varying": channels.Config(width=16, variation=4, prior=5.0),
    "rows": rows.Config(layers=2, width=32, heads=2, feedforward=32),
}


@pytest.mark.parametrize(
    ("generator", "kin"), [*[(name, None) for name in GENERATORS], ("channels", 0.3), ("rows", 0.3)]
)
def test_groups_are_answered_as_if_each_came_alone(generator: str, kin: float | None) -> None:
    torch.manual_seed(0)
    backbone = torchvision.models.resnet18(num_classes=7).double().cuda().eval()
    model = GeneralizeFormer(backbone, Config(generator=GENERATORS[generator], kin=kin)).eval()
    x, groups = torch.randn(9, 3, 64, 64).double().cuda(), torch.tensor([0, 0, 1, 1, 1, 1, 2, 3, 3])
    with torch.no_grad():
        for value in model.generator.parameters():
            value.add_(0.1 * torch.randn_like(value))
        for value in () if model.variation is None else model.variation.buffers():
            value.add_(0.1 * torch.rand_like(value))
        together = model(x, groups)
        alone = torch.cat([model(x[(groups == g).cuda()]) for g in range(4)])
        plain = backbone(x)
    assert (together - plain).abs().max() > 1e-3
    torch.testing.assert_close(together, alone, rtol=0, atol=1e-8)


def test_a_loaded_model_is_where_the_lent_backbone_is(tmp_path: Path) -> None:
    model = GeneralizeFormer(build_backbone("digits-small", 4, channels=3)).eval()
    model.save_pretrained(tmp_path)
    lent = build_backbone("digits-small", 4, channels=3).cuda()
    loaded = GeneralizeFormer.from_pretrained(tmp_path, backbone=lent)
    assert {value.device.type for value in loaded.state_dict().values()} == {"cuda"}
    x = torch.randn(4, 3, 28, 28)
    torch.testing.assert_close(loaded(x.cuda()).cpu(), model(x), rtol=1e-2, atol=1e-2)


@pytest.mark.parametrize("generator", ["channels", "varying"])
def test_kernels_answer_and_learn_like_pytorchs_operations(
    generator: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(0)
    backbone = placed(build_backbone("timm:tf_efficientnet_lite0", 7), torch.device("cuda")).eval()
    x, groups = torch.randn(9, 3, 64, 64).cuda(), torch.tensor([0, 0, 1, 1, 1, 1, 2, 3, 3])
    model = GeneralizeFormer(backbone, Config(generator=GENERATORS[generator])).cuda().eval()
    model.calibrate(x)
    model.learn_looks(x, torch.arange(9) // 3)
    model.generator.begin(0.2, 0.1, 0.5)  # type: ignore[operator]
    found = []
    for served in (maps.serves, lambda x: False):
        monkeypatch.setattr(maps, "serves", served)
        logits = model(x, groups)
        of_phi = torch.autograd.grad(logits.square().mean(), list(model.generator.parameters()))
        found.append((logits.detach(), torch.cat([part.flatten() for part in of_phi])))
    for ours, exact in zip(*found, strict=True):
        assert (ours - exact).norm() < 0.01 * exact.norm()


@pytest.mark.parametrize("kin", [None, 0.3])
def test_a_compiled_backbone_answers_alike_for_any_number_of_groups(kin: float | None) -> None:
    torch.manual_seed(0)
    backbone = build_backbone("digits-small", 10, channels=1)
    model = GeneralizeFormer(backbone, Config(kin=kin)).cuda().eval()
    x = torch.randn(40, 1, 28, 28).cuda()
    with torch.no_grad():
        for value in model.generator.parameters():
            value.add_(0.1 * torch.randn_like(value))
        expected = [model(x, torch.arange(40) // size) for size in (20, 8, 4)]
        model.network.compile()
        got = [model(x, torch.arange(40) // size) for size in (20, 8, 4)]
    for one, two in zip(expected, got, strict=True):
        torch.testing.assert_close(one, two, rtol=1e-2, atol=1e-2)


@pytest.mark.parametrize("precision", ["32-true", "bf16-mixed"])
def test_training_runs_and_learns(tmp_path: Path, precision: str) -> None:
    sources = digits.sources(digits.Config())
    card = Card(
        classes=sources.classes,
        architecture="digits-small",
        preprocessing=Preprocessing(size=28, mean=(0.1307,), std=(0.3081,)),
        dataset="digits",
    )
    recipe = Recipe(
        held_out=("15",),
        erm=ErmConfig(steps=120, per_domain=16, learning_rate=3e-3),
        meta=MetaConfig(steps=40, images=80, learning_rate=3e-3, every=20),
    )
    fabric = Fabric(accelerator="cuda", devices=1, precision=precision)
    model = train_recipe(
        lambda: build_backbone("digits-small", 10, channels=1),
        sources,
        recipe,
        card,
        tmp_path,
        fabric,
    )
    assert model.card.source_accuracy is not None
    assert model.card.source_accuracy > 70
    assert GeneralizeFormer.from_pretrained(tmp_path).card == model.card


def test_the_same_training_gives_the_same_backbone_to_the_bit(tmp_path: Path) -> None:
    images = torch.randint(0, 256, (2, 40, 3, 64, 64), dtype=torch.uint8)
    labels = torch.arange(40) % 7
    domains = tuple(Domain(name, images[i], labels) for i, name in enumerate("ab"))
    data = DomainDataset("noise", tuple("abcdefg"), domains).to("cuda")
    fabric = Fabric(accelerator="cuda", devices=1, precision="bf16-mixed")
    prints = set()
    for run in ("one", "two"):
        torch.manual_seed(0)
        method = Erm(
            torchvision.models.mobilenet_v2(num_classes=7),
            data,
            data,
            Preprocessing(size=64),
            ErmConfig(steps=30, per_domain=16, every=30),
            fabric,
        )
        fit(method, Stage(name="erm", steps=30, seed=0, folder=tmp_path / run, fabric=fabric))
        prints.add(fingerprint(method.weights()))
    assert len(prints) == 1

"""Training from Python on the reader's own model and images."""

from pathlib import Path
from typing import Any

import jaxtyping
import numpy as np
import pytest
import torch
from lightning_fabric import Fabric
from torch import Tensor, nn
from torch.utils.data import TensorDataset

import generalizeformer
from generalizeformer import GeneralizeFormer, Preprocessing, Recipe
from generalizeformer.core.backbones import DigitNet, build_backbone
from generalizeformer.core.settings import Config
from generalizeformer.errors import DataError, UserError
from generalizeformer.imaging.augmentation import Config as Augmentation
from generalizeformer.imaging.looks import Config as Looks
from generalizeformer.training import _run
from generalizeformer.training.erm import Config as ErmConfig
from generalizeformer.training.meta import Config as MetaConfig

META = MetaConfig(steps=2, images=8, sizes=(1, 4), looks=Looks(), look_share=1.0)


def domains(*names: str, channels: int = 3) -> dict[str, tuple[Tensor, Tensor]]:
    torch.manual_seed(1)
    shape = (12, channels, 16, 16)
    return {n: (torch.randint(256, shape, dtype=torch.uint8), torch.arange(12) % 4) for n in names}


def network(channels: int = 3) -> nn.Module:
    torch.manual_seed(0)
    return DigitNet(4, (4, 6), channels)


def test_a_trained_backbone_is_kept_and_only_the_generator_learns(tmp_path: Path) -> None:
    backbone = network()
    recipe = Recipe(episodes="looks", erm=None, meta=META)
    model = generalizeformer.train(backbone, domains("a"), tmp_path, recipe=recipe)
    kept = model.backbone.state_dict()
    assert all(torch.equal(kept[name], value) for name, value in backbone.state_dict().items())
    assert model.backbone is not backbone
    assert any(value.abs().max() > 0 for value in model.generator.decode["norm"][-1].parameters())


def test_the_lent_backbone_keeps_its_weights_and_its_mode(tmp_path: Path) -> None:
    backbone = network().train()
    before = {name: value.clone() for name, value in backbone.state_dict().items()}
    recipe = Recipe(erm=ErmConfig(steps=2, per_domain=4), meta=META)
    generalizeformer.train(backbone, domains("a", "b"), tmp_path, recipe=recipe)
    assert backbone.training
    assert all(torch.equal(before[name], v) for name, v in backbone.state_dict().items())


def test_the_saved_model_answers_alike(tmp_path: Path) -> None:
    recipe = Recipe(episodes="looks", erm=None, meta=META)
    model = generalizeformer.train(network(), domains("a"), tmp_path, recipe=recipe)
    loaded = GeneralizeFormer.from_pretrained(tmp_path, backbone=network())
    x = torch.randn(5, 3, 16, 16)
    assert torch.equal(model.eval()(x), loaded(x))
    assert loaded.card.sources == ("a",)
    assert loaded.card.classes == ("0", "1", "2", "3")


def test_images_of_any_number_of_channels_can_be_trained_on(tmp_path: Path) -> None:
    recipe = Recipe(episodes="looks", erm=None, meta=META)
    model = generalizeformer.train(network(2), domains("a", channels=2), tmp_path, recipe=recipe)
    assert model.card.preprocessing == Preprocessing(size=16, mean=(0.5, 0.5), std=(0.5, 0.5))


@pytest.mark.parametrize("episodes", ["held-out", "joint"])
def test_episodes_that_train_backbones_need_settings_for_it(tmp_path: Path, episodes: str) -> None:
    recipe = Recipe(episodes=episodes, erm=None, meta=META)
    with pytest.raises(DataError, match="use episodes 'looks' to train φ alone"):
        generalizeformer.train(network(), domains("a", "b"), tmp_path, recipe=recipe)


def test_looks_need_no_settings_of_their_own(tmp_path: Path) -> None:
    recipe = Recipe(episodes="looks", erm=None, meta=MetaConfig(steps=2, images=8, sizes=(4,)))
    generalizeformer.train(network(), domains("a", "b"), tmp_path, recipe=recipe)
    assert (tmp_path / "config.json").exists()


def test_the_classes_are_the_classifiers_not_those_of_the_labels(tmp_path: Path) -> None:
    recipe = Recipe(episodes="looks", erm=None, meta=META)
    five = DigitNet(5, (4, 6), 3)
    model = generalizeformer.train(five, domains("a"), tmp_path, recipe=recipe)
    assert model.card.classes == ("0", "1", "2", "3", "4")
    with pytest.raises(DataError, match=r"domain 'a': labels go up to 3, but .* 2 classes apart"):
        generalizeformer.train(DigitNet(2, (4, 6), 3), domains("a"), tmp_path / "x", recipe=recipe)
    with pytest.raises(DataError, match="got 3 names, but the backbone's classifier tells 5"):
        generalizeformer.train(five, domains("a"), tmp_path / "x", classes=("x", "y", "z"))
    assert not (tmp_path / "x").exists()


def test_nothing_to_learn_from_is_told(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="got no domains; give at least one"):
        generalizeformer.train(network(), {}, tmp_path)
    empty = {"a": (torch.zeros(0, 3, 16, 16, dtype=torch.uint8), torch.zeros(0, dtype=torch.int64))}
    with pytest.raises(DataError, match="domain 'a': it has no images"):
        generalizeformer.train(network(), empty, tmp_path)


def test_a_model_with_a_name_loads_by_itself(tmp_path: Path) -> None:
    recipe = Recipe(episodes="looks", erm=None, meta=META)
    named = build_backbone("digits-small", 4)
    generalizeformer.train(
        named, domains("a"), tmp_path, recipe=recipe, architecture="digits-small"
    )
    assert GeneralizeFormer.from_pretrained(tmp_path).card.architecture == "digits-small"
    with pytest.raises(DataError, match="'digits-small' has other weights than the DigitNet"):
        generalizeformer.train(network(), domains("a"), tmp_path, architecture="digits-small")


def test_a_fabric_of_ones_own_is_used_and_the_device_is_not(tmp_path: Path) -> None:
    recipe = Recipe(episodes="looks", erm=None, meta=META)
    where = Fabric(accelerator="cpu", devices=1)
    model = generalizeformer.train(
        network(), domains("a"), tmp_path, recipe=recipe, device="cuda", fabric=where
    )
    assert next(model.parameters()).device == where.device


def test_one_domain_is_trained_on_its_looks_by_default() -> None:
    from generalizeformer.training._own import _usual

    assert _usual(1).episodes == "looks"
    assert _usual(1).meta.looks is not None
    assert _usual(2).episodes == "held-out"


def test_a_compiled_model_is_trained_like_the_one_within(tmp_path: Path) -> None:
    recipe = Recipe(episodes="looks", erm=None, meta=META)
    plain = generalizeformer.train(network(), domains("a"), tmp_path / "plain", recipe=recipe)
    wrapped = torch.compile(network())
    model = generalizeformer.train(wrapped, domains("a"), tmp_path / "compiled", recipe=recipe)
    assert model.card == plain.card
    assert all(torch.equal(plain.state_dict()[n], value) for n, value in model.state_dict().items())
    GeneralizeFormer.from_pretrained(tmp_path / "plain", backbone=wrapped)


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(("given", "told"), [("resnet18", "str"), (DigitNet, "the class DigitNet")])
def test_a_name_or_a_class_is_no_backbone(tmp_path: Path, given: Any, told: str) -> None:
    with pytest.raises(UserError, match=f"backbone: got {told}; give a torch module"):
        generalizeformer.train(given, domains("a"), tmp_path)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.gpu
@pytest.mark.parametrize("near", ["backbone", "images", "both"])
def test_backbones_and_images_may_be_on_any_device(tmp_path: Path, near: str) -> None:
    backbone, data = network(), domains("a", "b")
    backbone = backbone if near == "images" else backbone.cuda()
    if near != "backbone":
        data = {name: (pixels.cuda(), labels.cuda()) for name, (pixels, labels) in data.items()}
    recipe = Recipe(erm=ErmConfig(steps=2, per_domain=4), meta=META)
    for device in ("cpu", "cuda"):
        folder = tmp_path / device
        model = generalizeformer.train(backbone, data, folder, recipe=recipe, device=device)
        assert next(model.parameters()).device.type == device


@pytest.mark.parametrize(
    ("cast", "told"), [(nn.Module.half, "float16"), (nn.Module.double, "float64")]
)
def test_weights_of_another_precision_are_refused_by_name(
    tmp_path: Path, cast: Any, told: str
) -> None:
    with pytest.raises(UserError, match=rf"DigitNet has parameters of torch.{told}, .*\.float\(\)"):
        generalizeformer.train(cast(network()), domains("a"), tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_frozen_backbone_is_refused_where_it_would_be_trained(tmp_path: Path) -> None:
    frozen = network().requires_grad_(False)
    with pytest.raises(UserError, match="no parameter of DigitNet requires a gradient, but"):
        generalizeformer.train(frozen, domains("a", "b"), tmp_path)
    assert list(tmp_path.iterdir()) == []
    recipe = Recipe(episodes="looks", erm=None, meta=META)
    generalizeformer.train(frozen, domains("a"), tmp_path, recipe=recipe)


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_it_trains_whatever_the_caller_does_without_gradients(tmp_path: Path, mode: Any) -> None:
    recipe = Recipe(erm=ErmConfig(steps=2, per_domain=4), meta=META)
    expected = generalizeformer.train(network(), domains("a", "b"), tmp_path / "1", recipe=recipe)
    with mode():  # in which the backbone and the images may have been made as well
        backbone, data = network(), domains("a", "b")
        model = generalizeformer.train(backbone, data, tmp_path / "2", recipe=recipe)
    wanted, found = expected.state_dict(), model.state_dict()
    assert all(torch.equal(wanted[name], value) for name, value in found.items())
    assert not any(value.is_inference() for value in found.values())


@pytest.mark.parametrize(
    ("flips", "given", "found"),
    [(0.5, None, "all"), (0.0, None, "no"), (0.5, "no", "no"), (0.0, "group", "group")],
)
def test_mirror_images_are_asked_about_where_the_backbone_learned_from_them(
    tmp_path: Path, flips: float, given: Any, found: str
) -> None:
    erm = ErmConfig(steps=2, per_domain=4, augmentation=Augmentation(flip_chance=flips))
    recipe = Recipe(episodes="looks", model=Config(mirrored=given), erm=erm, meta=META)
    model = generalizeformer.train(network(), domains("a"), tmp_path, recipe=recipe)
    assert model.config.mirrored == found


def refusal(tmp_path: Path, **given: Any) -> str:
    """The one line with which a training is refused, as users meet it: without the shape checks of tests."""
    words: dict[str, Any] = {
        "backbone": network(),
        "domains": domains("a"),
        "folder": tmp_path / "x",
    }
    jaxtyping.config.update("jaxtyping_disable", True)
    try:
        with pytest.raises(UserError) as error:
            generalizeformer.train(**(words | given))
    finally:
        jaxtyping.config.update("jaxtyping_disable", False)
    assert "\n" not in str(error.value)
    assert not (tmp_path / "x").exists()
    return str(error.value)


PIXELS, LABELS = domains("a")["a"]


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ([(PIXELS, LABELS)], "domains: got list; give a dict of name → (pixels, labels)"),
        (TensorDataset(PIXELS, LABELS), "domains: got TensorDataset; give a dict"),
        ({"a": TensorDataset(PIXELS, LABELS)}, "domain 'a': got TensorDataset; give a pair"),
        ({"a": PIXELS}, "domain 'a': got Tensor; give a pair (pixels, labels)"),
        ({"a": (PIXELS, LABELS, 3)}, "domain 'a': got tuple of 3; give a pair"),
        ({0: (PIXELS, LABELS)}, "domains: got the name 0; names are text, such as '0'"),
        ({"a": (PIXELS, [0, 1])}, "domain 'a': labels are list; give a tensor or a numpy array"),
        (
            {"a": (PIXELS, np.array(["cat"]))},
            "domain 'a': labels are an array of <U3; give numbers",
        ),
        ({"a": (PIXELS, LABELS.float())}, "labels are (12,) of torch.float32; give one"),
        (
            {"a": (PIXELS.permute(0, 2, 3, 1), LABELS)},
            "domain 'a': pixels are (12, 16, 16, 3), which looks like (n, h, w, c); "
            "use pixels.permute(0, 3, 1, 2)",
        ),
        ({"a": (PIXELS.permute(0, 2, 3, 1).numpy(), LABELS)}, "use pixels.transpose(0, 3, 1, 2)"),
        (
            domains("a", channels=1),
            "DigitNet takes images of 3 channels, but these have 1; convert",
        ),
    ],
)
def test_domains_of_other_kinds_are_told_what_they_should_be(
    tmp_path: Path, given: Any, told: str
) -> None:
    assert told in refusal(tmp_path, domains=given)


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"recipe": {"steps": 3}}, "recipe: got dict; give a Recipe, such as"),
        ({"backbone": "resnet18"}, "backbone: got str; give a torch module"),
        ({"device": "gpu7"}, "device: got 'gpu7'; it must be one of auto, cpu, cuda, mps"),
        ({"device": "cuda"}, "device: cuda was asked for, but there is no usable one; use cpu"),
    ],
)
def test_what_cannot_be_trained_with_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, given: Any, told: str
) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    assert told in refusal(tmp_path, **given)


def test_a_folder_that_is_a_file_or_somebody_elses_is_told(tmp_path: Path) -> None:
    file, theirs = tmp_path / "file", tmp_path / "theirs"
    file.write_text("precious")
    assert refusal(tmp_path, folder=file).startswith(f"{file}: is a file, but results need a")
    theirs.mkdir()
    (theirs / "README.md").write_text("precious")
    assert "holds a README.md that no training wrote" in refusal(tmp_path, folder=theirs)


def test_arrays_of_numpy_are_trained_on_like_tensors(tmp_path: Path) -> None:
    recipe = Recipe(episodes="looks", erm=None, meta=META)
    wanted = generalizeformer.train(network(), domains("a"), tmp_path / "1", recipe=recipe)
    pixels, labels = PIXELS.numpy(), LABELS.numpy().astype(">i8")  # as files have them
    pixels = np.flip(pixels, 3).copy()[..., ::-1]  # read backwards: torch cannot share it
    labels.flags.writeable = False
    given = {"a": (pixels, labels)}
    model = generalizeformer.train(network(), given, tmp_path / "2", recipe=recipe)
    found = model.state_dict()
    assert all(torch.equal(found[name], value) for name, value in wanted.state_dict().items())


def test_a_training_that_did_harm_warns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_run, "mean_accuracies", lambda *_: (50.0, 43.8))
    recipe = Recipe(episodes="looks", erm=None, meta=META)
    with pytest.warns(UserWarning, match="6.2 points worse than the plain backbone") as told:
        generalizeformer.train(network(), domains("a"), tmp_path, recipe=recipe)
    assert len(told) == 1

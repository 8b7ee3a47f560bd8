import copy
import json
import pickle
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file
from torch import nn

from generalizeformer.core.artefact import CONFIG, README, WEIGHTS, foreign
from generalizeformer.core.backbones import DigitNet, build_backbone
from generalizeformer.core.card import Card
from generalizeformer.core.generalizeformer import GeneralizeFormer
from generalizeformer.core.guard import Guard
from generalizeformer.core.preprocessing import Preprocessing
from generalizeformer.core.settings import Config
from generalizeformer.core.slots import Selection
from generalizeformer.errors import CheckpointError

from .nets import (
    CHANNELS,
    GENERATORS,
    Net,
    assert_unchanged,
    digits,
    images,
    lived,
    perturb,
    perturbed,
    state,
)

GROUPS = torch.tensor([4, -2, 9, 4, 9, 9])
CLASSES = ("zero", "one", "two", "three")
BOTH = pytest.mark.parametrize("generator", list(GENERATORS))
BOTH_DTYPES = [torch.float32, torch.float64]
DTYPES = pytest.mark.parametrize("dtype", BOTH_DTYPES, ids=str)


def by_name(
    generator: Any = CHANNELS, dtype: torch.dtype = torch.float32, **config: Any
) -> GeneralizeFormer:
    """A trained model around a backbone that is known by its name."""
    torch.manual_seed(0)
    backbone = lived(build_backbone("digits-small", 4, channels=3)).to(dtype)
    card = Card(
        classes=CLASSES,
        architecture="digits-small",
        preprocessing=Preprocessing(size=16),
        source_accuracy=87.5,
        adapted_accuracy=91.25,
    )
    return perturb(GeneralizeFormer(backbone, Config(generator=generator, **config), card)).eval()


def assert_same(loaded: GeneralizeFormer, model: GeneralizeFormer) -> None:
    own, stored = model.state_dict(), loaded.state_dict()
    assert own.keys() == stored.keys()
    for name, value in own.items():
        assert stored[name].dtype == value.dtype, name
        assert torch.equal(stored[name], value), name
    assert loaded.config == model.config
    assert loaded.card == model.card
    x = images(6, dtype=next(model.backbone.parameters()).dtype)
    assert torch.equal(loaded(x, GROUPS), model(x, GROUPS))


@BOTH
@DTYPES
def test_a_model_by_name_comes_back_exactly(
    generator: str, dtype: torch.dtype, tmp_path: Path
) -> None:
    model = by_name(GENERATORS[generator], dtype)
    model.save_pretrained(tmp_path)
    assert_same(GeneralizeFormer.from_pretrained(tmp_path), model)


@BOTH
@DTYPES
def test_a_model_of_one_s_own_class_comes_back_exactly(
    generator: str, dtype: torch.dtype, tmp_path: Path
) -> None:
    torch.manual_seed(0)
    model = perturbed(lived(Net()).to(dtype), GENERATORS[generator])
    model.save_pretrained(tmp_path)
    assert_same(GeneralizeFormer.from_pretrained(tmp_path, backbone=Net()), model)


class Masked(Net):
    """With buffers that no state has, of the parameters' precision and of others, one of them in two places."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mask", torch.linspace(0.5, 1, 8).reshape(-1, 1, 1), persistent=False)
        self.register_buffer("count", torch.ones(1, dtype=torch.long), persistent=False)
        self.register_buffer("exact", torch.ones(1, dtype=torch.float16), persistent=False)
        self.inner = nn.Module()
        self.inner.register_buffer("mask", self.mask, persistent=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.norm(self.conv(x) * self.mask * self.inner.mask * self.count)
        return self.fc(self.hidden(x.mean((2, 3))).relu())


@pytest.mark.parametrize("lent", BOTH_DTYPES, ids=str)
@DTYPES
def test_buffers_that_are_not_saved_follow_the_saved_precision(
    lent: torch.dtype, dtype: torch.dtype, tmp_path: Path
) -> None:
    torch.manual_seed(0)
    model = perturbed(lived(Masked()).to(dtype))
    model.save_pretrained(tmp_path)
    other = Masked().to(lent)
    other.exact = other.exact.to(torch.float16)
    loaded = GeneralizeFormer.from_pretrained(tmp_path, backbone=other)
    assert other.mask.dtype == lent
    assert {loaded.backbone.mask.dtype, loaded.backbone.inner.mask.dtype} == {dtype}
    assert loaded.backbone.count.dtype == torch.long
    assert loaded.backbone.exact.dtype == torch.float16
    x = images(6, dtype=dtype)
    torch.testing.assert_close(loaded(x, GROUPS), model(x, GROUPS))


def test_a_model_that_is_loaded_in_inference_mode_answers_there(tmp_path: Path) -> None:
    model = by_name()
    model.save_pretrained(tmp_path)
    with torch.inference_mode():
        lent = build_backbone("digits-small", 4, channels=3)
        for backbone in (None, lent):
            loaded = GeneralizeFormer.from_pretrained(tmp_path, backbone=backbone)
            x = images(6, dtype=torch.float32)
            assert torch.equal(loaded(x, GROUPS), model(x, GROUPS))


def test_a_backbone_without_a_place_gets_the_saved_one(tmp_path: Path) -> None:
    model = by_name()
    model.save_pretrained(tmp_path)
    with torch.device("meta"):
        lent = build_backbone("digits-small", 4, channels=3)
    loaded = GeneralizeFormer.from_pretrained(tmp_path, backbone=lent)
    assert {value.device.type for value in loaded.state_dict().values()} == {"cpu"}


def test_every_setting_comes_back(tmp_path: Path) -> None:
    selection = Selection(kinds=("norm",), stages=("blocks.1", "blocks.2"), exclude=("blocks.1",))
    model = by_name(selection=selection, loss="memo", views=3, guard=Guard(limit=0.2, steps=2))
    model.save_pretrained(tmp_path)
    assert_same(GeneralizeFormer.from_pretrained(tmp_path), model)


def test_calibration_comes_back(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = perturbed(lived(Net(nn.LayerNorm(8), tokens=True)))
    model.calibrate(images(6))
    model.save_pretrained(tmp_path)
    other = Net(nn.LayerNorm(8), tokens=True)
    assert_same(GeneralizeFormer.from_pretrained(tmp_path, backbone=other), model)


def test_a_loaded_model_answers_without_being_told_to_stop_training(tmp_path: Path) -> None:
    model = by_name()
    model.train()
    model.save_pretrained(tmp_path)
    loaded = GeneralizeFormer.from_pretrained(tmp_path)
    x = images(6, dtype=torch.float32)
    assert not loaded.generator.training
    assert torch.equal(loaded(x), loaded(x))


def test_a_loaded_model_can_be_trained_further(tmp_path: Path) -> None:
    by_name().save_pretrained(tmp_path)
    loaded = GeneralizeFormer.from_pretrained(tmp_path)
    loaded(images(6, dtype=torch.float32)).square().sum().backward()
    assert all(p.grad is not None for p in loaded.generator.parameters())


def test_saving_a_loaded_model_writes_the_same_bytes(tmp_path: Path) -> None:
    by_name().save_pretrained(tmp_path / "a")
    GeneralizeFormer.from_pretrained(tmp_path / "a").save_pretrained(tmp_path / "b")
    for name in (WEIGHTS, CONFIG):
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes()


def test_the_lent_backbone_is_not_written_to_by_loading(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = perturbed(lived(Net()))
    model.save_pretrained(tmp_path)
    lent = Net().train()
    before = state(lent)
    loaded = GeneralizeFormer.from_pretrained(tmp_path, backbone=lent)
    loaded(images(6), GROUPS)
    assert loaded.backbone is not lent
    assert_unchanged(lent, before)


def test_a_folder_holds_three_files_and_no_leftovers(tmp_path: Path) -> None:
    model = by_name()
    model.save_pretrained(tmp_path)
    model.save_pretrained(tmp_path)
    assert {file.name for file in tmp_path.iterdir()} == {WEIGHTS, CONFIG, README}


def test_the_readme_names_classes_and_accuracy(tmp_path: Path) -> None:
    by_name().save_pretrained(tmp_path)
    text = (tmp_path / README).read_text("utf-8")
    assert all(name in text for name in CLASSES)
    assert "87.5 %" in text
    assert "91.2 %" in text


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("good")
    by_name().save_pretrained(folder)
    return folder


@pytest.fixture
def folder(good: Path, tmp_path: Path) -> Path:
    """A sound folder that a test may damage."""
    for file in good.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    return tmp_path


def checked_refusal(folder: Path | str, names: str | Path, **kwargs: Any) -> str:
    """The one line with which the folder is refused; it names the file or folder."""
    with pytest.raises(CheckpointError) as error:
        GeneralizeFormer.from_pretrained(folder, **kwargs)
    text = str(error.value)
    assert "\n" not in text
    assert str(names) in text
    return text


@settings(deadline=None, max_examples=12)
@given(part=st.floats(0, 0.999))
def test_weights_cut_short_anywhere_are_refused(
    good: Path, tmp_path_factory: pytest.TempPathFactory, part: float
) -> None:
    folder = tmp_path_factory.mktemp("cut")
    for file in good.iterdir():
        (folder / file.name).write_bytes(file.read_bytes())
    content = (good / WEIGHTS).read_bytes()
    (folder / WEIGHTS).write_bytes(content[: int(part * len(content))])
    assert "cut short, damaged or missing" in checked_refusal(folder, folder / WEIGHTS)


@settings(deadline=None, max_examples=12)
@given(part=st.floats(0, 0.99))
def test_a_config_cut_short_anywhere_is_refused(
    good: Path, tmp_path_factory: pytest.TempPathFactory, part: float
) -> None:
    folder = tmp_path_factory.mktemp("cut")
    for file in good.iterdir():
        (folder / file.name).write_bytes(file.read_bytes())
    content = (good / CONFIG).read_bytes()
    (folder / CONFIG).write_bytes(content[: int(part * len(content))])
    assert "not readable" in checked_refusal(folder, folder / CONFIG)


@pytest.mark.parametrize(
    ("content", "text"),
    [
        (b"\xff\xfe\x00binary", "not readable"),
        (b"[1, 2]", "another library"),
        (b"null", "another library"),
        (b'{"model_type": "bert", "hidden_size": 768}', "another library"),
        (b'{"library": "generalizeformer", "format": 8}', "format 8, but this version reads 7"),
        (b'{"library": "generalizeformer"}', "format None"),
        (b'{"library": "generalizeformer", "format": 1}', "damaged"),
        (b'{"library": "generalizeformer", "format": 1, "model": [], "card": {}}', "damaged"),
        (b'{"library": "generalizeformer", "format": 1, "model": {}, "card": null}', "damaged"),
        (b"[" * 100_000, "not readable"),
    ],
    ids=lambda value: value[:24] if isinstance(value, str) else None,
)
def test_a_config_that_is_not_ours_is_refused(folder: Path, content: bytes, text: str) -> None:
    (folder / CONFIG).write_bytes(content)
    assert text in checked_refusal(folder, folder / CONFIG)


def edit(folder: Path, *path: str, value: Any) -> None:
    content = json.loads((folder / CONFIG).read_text())
    at = content
    for key in path[:-1]:
        at = at[key]
    at[path[-1]] = value
    (folder / CONFIG).write_text(json.dumps(content))


@pytest.mark.parametrize(
    ("path", "value", "text"),
    [
        (("model", "vews"), 3, "no setting 'vews'"),
        (("model", "generator", "dephth"), 3, "no setting 'generator.dephth'"),
        (("card", "preprocessing", "crop"), 3, "no setting 'preprocessing.crop'"),
        (("model", "loss"), "hinge", "setting loss"),
        (("model", "generator", "heads"), 7, "not a multiple of 7 heads"),
        (("model", "guard"), {"limit": -1}, "setting guard"),
        (("card", "classes"), "abc", "setting classes"),
    ],
    ids=lambda value: ".".join(value) if isinstance(value, tuple) else None,
)
def test_a_setting_that_is_unknown_or_impossible_is_refused_by_name(
    folder: Path, path: tuple[str, ...], value: Any, text: str
) -> None:
    edit(folder, *path, value=value)
    assert text in checked_refusal(folder, folder / CONFIG)


def test_a_missing_folder_is_refused(tmp_path: Path) -> None:
    assert "no such model folder" in checked_refusal(tmp_path / "nothing", tmp_path / "nothing")


@pytest.mark.parametrize("name", ["nothing", "./a/nothing", "a/b/nothing"])
def test_a_missing_relative_folder_is_not_sought_on_the_hub(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("huggingface_hub.snapshot_download", None)
    assert "no such model folder" in checked_refusal(name, name)


def test_a_repository_that_cannot_be_fetched_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*args: Any, **kwargs: Any) -> str:
        raise OSError("offline\nwith a long story")

    monkeypatch.setattr("huggingface_hub.snapshot_download", fail)
    assert "could be fetched (offline)" in checked_refusal("someone/model", "someone/model")


def test_a_repository_is_loaded_from_its_snapshot(
    good: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = {}

    def fetch(name: str, **kwargs: Any) -> str:
        asked.update(kwargs, name=name)
        return str(good)

    monkeypatch.setattr("huggingface_hub.snapshot_download", fetch)
    loaded = GeneralizeFormer.from_pretrained("someone/model", revision="v1")
    assert asked == {"name": "someone/model", "revision": "v1"}
    assert loaded.card.classes == CLASSES


def test_a_folder_without_config_is_no_saved_model(folder: Path) -> None:
    (folder / CONFIG).unlink()
    assert "is not a saved model" in checked_refusal(folder, folder / CONFIG)


def test_a_file_in_place_of_a_folder_is_refused(folder: Path) -> None:
    checked_refusal(folder / WEIGHTS, folder / WEIGHTS)


def test_missing_weights_are_refused(folder: Path) -> None:
    (folder / WEIGHTS).unlink()
    checked_refusal(folder, folder / WEIGHTS)


def test_empty_weights_are_refused(folder: Path) -> None:
    (folder / WEIGHTS).write_bytes(b"")
    checked_refusal(folder, folder / WEIGHTS)


def test_a_folder_in_place_of_weights_is_refused(folder: Path) -> None:
    (folder / WEIGHTS).unlink()
    (folder / WEIGHTS).mkdir()
    checked_refusal(folder, folder / WEIGHTS)


class Bomb:
    def __reduce__(self) -> tuple[Any, tuple[str]]:
        return (pytest.fail, ("a pickle was loaded",))


@pytest.mark.parametrize("write", ["pickle", "torch"])
def test_pickles_are_refused_without_being_loaded(folder: Path, write: str) -> None:
    if write == "pickle":
        (folder / WEIGHTS).write_bytes(pickle.dumps(Bomb()))
    else:
        torch.save({"weights": Bomb()}, folder / WEIGHTS)
    checked_refusal(folder, folder / WEIGHTS)


@pytest.mark.parametrize("widths", [(16, 24, 32, 65), (16, 24, 32, 64, 64)])
def test_another_backbone_is_refused(folder: Path, widths: tuple[int, ...]) -> None:
    text = checked_refusal(folder, folder / WEIGHTS, backbone=DigitNet(4, widths, 3))
    assert "belongs to another backbone" in text


def test_a_backbone_of_another_number_of_classes_is_refused(folder: Path) -> None:
    text = checked_refusal(folder, folder, backbone=DigitNet(6, (16, 24, 32, 64), 3))
    assert "the saved model has 4 classes, the backbone given tells 6 apart; build it for 4" in text


def test_weights_of_another_architecture_are_refused(folder: Path) -> None:
    edit(folder, "card", "architecture", value="digits")
    assert "does not fit the model" in checked_refusal(folder, folder / WEIGHTS)


def test_weights_that_are_no_numbers_are_refused_by_name(folder: Path) -> None:
    name, tensors = "backbone.classifier.weight", load_file(folder / WEIGHTS)
    tensors[name] = tensors[name].clone()
    tensors[name].view(-1)[-1] = float("nan")
    save_file(tensors, folder / WEIGHTS)
    assert f"NaN in {name}; copy it again" in checked_refusal(folder, folder / WEIGHTS)


def test_a_companion_that_is_no_number_is_refused(folder: Path) -> None:
    path = folder / "itta.companion.safetensors"
    save_file({"steps": torch.tensor([1.0, float("nan")])}, path)
    assert "NaN in steps" in checked_refusal(folder, path)


def test_a_mask_may_be_infinite_and_nan_is_not_saved(tmp_path: Path) -> None:
    def masked() -> nn.Module:
        net = digits()
        net.register_buffer("mask", torch.tensor([0.0, float("-inf")]))
        return net

    model = GeneralizeFormer(masked())
    model.companions = {"itta": {"mask": torch.tensor([float("-inf")])}}
    model.save_pretrained(tmp_path)
    loaded = GeneralizeFormer.from_pretrained(tmp_path, backbone=masked())
    assert loaded.companions["itta"]["mask"].isinf().all()
    model.companions["itta"]["steps"] = torch.tensor([float("nan")])
    with pytest.raises(CheckpointError, match="NaN in steps; train again"):
        model.save_pretrained(tmp_path / "x")
    model.companions = {}
    with torch.no_grad():
        model.backbone.classifier.bias.fill_(float("nan"))
    with pytest.raises(CheckpointError, match=r"NaN in backbone\.classifier\.bias; train again"):
        model.save_pretrained(tmp_path / "x")
    assert not (tmp_path / "x" / CONFIG).exists()


def test_files_that_a_saved_model_would_replace_are_its_own_or_foreign(folder: Path) -> None:
    assert foreign(folder) == []
    (folder / CONFIG).write_text("{}")
    assert foreign(folder) == [CONFIG, WEIGHTS]
    (folder / CONFIG).unlink()
    (folder / README).unlink()
    (folder / README).mkdir()
    (folder / "mine.companion.safetensors").touch()
    assert foreign(folder) == [README, WEIGHTS, "mine.companion.safetensors"]


def test_a_class_of_one_s_own_is_asked_for(tmp_path: Path) -> None:
    model = perturbed(digits())
    model.card = Card(backbone="DigitNet")
    model.save_pretrained(tmp_path)
    text = checked_refusal(tmp_path, tmp_path)
    assert "DigitNet" in text
    assert "backbone=" in text


def test_a_loaded_model_does_not_hang_on_its_file(folder: Path) -> None:
    loaded = GeneralizeFormer.from_pretrained(folder)
    before = copy.deepcopy(loaded.state_dict())
    size = (folder / WEIGHTS).stat().st_size
    with (folder / WEIGHTS).open("r+b") as file:
        file.write(bytes(size))
    assert all(torch.equal(value, before[name]) for name, value in loaded.state_dict().items())


def test_a_model_saved_over_another_is_the_new_one(tmp_path: Path) -> None:
    by_name(GENERATORS["rows"]).save_pretrained(tmp_path)
    model = by_name(GENERATORS["channels"])
    model.save_pretrained(tmp_path)
    assert_same(GeneralizeFormer.from_pretrained(tmp_path), model)


def test_saving_does_not_disturb_the_model(tmp_path: Path) -> None:
    model = by_name()
    before = copy.deepcopy(model.state_dict())
    model.save_pretrained(tmp_path)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_whoever_may_read_the_config_may_read_the_weights(tmp_path: Path) -> None:
    GeneralizeFormer(digits()).save_pretrained(tmp_path)
    modes = {(tmp_path / name).stat().st_mode for name in (WEIGHTS, CONFIG, README)}
    assert len(modes) == 1

"""Folders that older versions wrote: read as they were meant, and answering as they did."""

import dataclasses
import json
from pathlib import Path

import pytest
import torch

from generalizeformer.core.artefact import FORMAT
from generalizeformer.core.backbones import build_backbone
from generalizeformer.core.generalizeformer import GeneralizeFormer
from generalizeformer.core.generators import channels
from generalizeformer.core.settings import Config

from .test_artefact import by_name


@pytest.mark.parametrize(
    ("form", "without"),
    [
        (1, ("settle", "detail", "gather", "pull", "away")),
        (2, ("gather", "pull", "away")),
        (3, ("pull", "away")),
        (4, ()),
    ],
)
def test_a_folder_of_an_older_format_is_read_as_it_was_meant(
    form: int, without: tuple[str, ...], tmp_path: Path
) -> None:
    old = channels.Config(layers=1, width=16, heads=2, settle=False, detail=True, gather=False)
    old = dataclasses.replace(
        old, variation=0, reach=0.9, pull=0.9, away=1.0, recall=0.0, prior=0.0
    )
    ways = {"strengths": (1.0,), "singly": False, "mirrored": "no", "mean": "probabilities"}
    model = by_name(old, **ways, kin=None)
    model.save_pretrained(tmp_path)
    config = tmp_path / "config.json"
    content = json.loads(config.read_text())
    for name in (*without, "recall", "prior", "variation"):
        del content["model"]["generator"][name]
    if form == 1:
        del content["model"]["strengths"]
    for name in ("singly", "mirrored", "mean", "kin"):
        del content["model"][name]
    config.write_text(json.dumps(content | {"format": form}))
    assert GeneralizeFormer.from_pretrained(tmp_path).config == model.config
    # Else the file lacks the prototypes, and what is known of looks.
    content["model"]["generator"] |= {"recall": 0.0, "variation": 0}
    config.write_text(json.dumps(content | {"format": FORMAT}))
    assert GeneralizeFormer.from_pretrained(tmp_path).config != model.config


@pytest.mark.parametrize(("before", "now"), [(True, "group"), (False, "no")])
def test_models_of_format_5_average_probabilities(before: bool, now: str, tmp_path: Path) -> None:
    model = by_name(mirrored=now, mean="probabilities", kin=None)
    model.save_pretrained(tmp_path)
    config = tmp_path / "config.json"
    content = json.loads(config.read_text())
    del content["model"]["mean"], content["model"]["kin"]
    content["model"]["mirrored"] = before
    config.write_text(json.dumps(content | {"format": 5}))
    assert GeneralizeFormer.from_pretrained(tmp_path).config == model.config


@pytest.mark.parametrize("mirrored", ["no", "group", "all"])
def test_models_of_format_6_are_mirrored_as_they_were(mirrored: str, tmp_path: Path) -> None:
    model = by_name(channels.Config(layers=1, width=16, heads=2, variation=0), mirrored=mirrored)
    model.save_pretrained(tmp_path)
    config = tmp_path / "config.json"
    content = json.loads(config.read_text())
    del content["model"]["generator"]["variation"]
    config.write_text(json.dumps(content | {"format": 6}))
    assert GeneralizeFormer.from_pretrained(tmp_path).config == model.config


# The answers of the version before prototypes and the prior, which writes what format 4 takes for granted.
FORMAT_4 = [
    [0.2111657307687561, 1.7880379260004005, 0.44831358493025786],
    [0.19025084645026835, 1.7958735908840437, 0.4624961705631824],
    [0.19139815994966525, 1.804553051110981, 0.42808501250795494],
    [0.19295720050662812, 1.7976273491433403, 0.4414286060360847],
]


@torch.no_grad()
def waves(model: GeneralizeFormer) -> GeneralizeFormer:
    """Every number of the model from a sine, so that no generator of random numbers decides it."""
    for number, value in enumerate(model.state_dict().values()):
        if value.is_floating_point():
            places = torch.arange(value.numel(), dtype=torch.float64)
            wave = 0.3 * torch.sin(1.7 * places + number).reshape(value.shape)
            value.copy_(wave + (value.dim() == 1))
    return model


def test_a_model_of_format_4_gives_the_answers_it_gave() -> None:
    backbone = build_backbone("digits-small", 3, channels=1).double()
    old = channels.Config(layers=1, width=8, heads=2, recall=0.0, prior=0.0, variation=0)
    kept = {"strengths": (0.0, 1.0), "singly": False, "mean": "probabilities", "kin": None}
    config = Config(generator=old, **kept)
    model = waves(GeneralizeFormer(backbone, config)).eval()
    pixels = torch.arange(4 * 16 * 16, dtype=torch.float64).mul(0.37).cos().reshape(4, 1, 16, 16)
    expected = torch.tensor(FORMAT_4, dtype=torch.float64)
    torch.testing.assert_close(model(pixels), expected, rtol=0, atol=1e-9)

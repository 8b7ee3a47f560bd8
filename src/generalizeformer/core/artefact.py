"""A trained model as a folder: model.safetensors, config.json, README.md. The only file of `core` that touches disk.

What compared methods were trained to know lies beside them, in a file for each.
"""

import copy
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from generalizeformer.atomic import replacing, write_text
from generalizeformer.config import from_dict, to_dict
from generalizeformer.core.backbones import build_backbone
from generalizeformer.core.card import MARK, Card, render
from generalizeformer.core.classifiers import class_count, find_classifier
from generalizeformer.core.inputs import uncompiled
from generalizeformer.errors import CheckpointError, UserError

FORMAT = 7
WEIGHTS, CONFIG, README = "model.safetensors", "config.json", "README.md"
COMPANION = ".companion.safetensors"  # ends the names of files that compared methods brought


@dataclass(frozen=True)
class Stored:
    """A folder's content, read and checked but not yet a model."""

    folder: Path
    config: Any
    card: Card
    tensors: dict[str, Tensor]
    companions: dict[str, dict[str, Tensor]]


def save(
    folder: Path,
    tensors: dict[str, Tensor],
    config: Any,
    card: Card,
    companions: dict[str, dict[str, Tensor]],
) -> None:
    """Writes the folder. Each file appears whole or not at all; the config comes last, so it vouches for the rest."""
    for weights in (tensors, *companions.values()):
        if broken := _broken(weights):
            raise CheckpointError(
                f"{folder}: nothing was saved, because there is NaN in {broken}; train again with a lower learning rate"
            )
    folder.mkdir(parents=True, exist_ok=True)
    _write(folder / WEIGHTS, tensors)
    for name, weights in companions.items():
        _write(folder / f"{name}{COMPANION}", weights)
    for old in folder.glob(f"*{COMPANION}"):
        if old.name.removesuffix(COMPANION) not in companions:
            old.unlink()
    write_text(folder / README, render(card, folder.name))
    content = {
        "library": "generalizeformer",
        "format": FORMAT,
        "model": to_dict(config),
        "card": to_dict(card),
    }
    write_text(folder / CONFIG, json.dumps(content, indent=2) + "\n")


def foreign(folder: Path) -> list[str]:
    """Files of the folder that a saved model would replace, and that are none of a saved model's."""
    ours = {README: MARK, CONFIG: '"library": "generalizeformer"'}
    found = [name for name, words in ours.items() if not _says(folder / name, words)]
    if CONFIG in found or not (folder / CONFIG).exists():  # weights say nothing of themselves
        weights = [folder / WEIGHTS, *sorted(folder.glob(f"*{COMPANION}"))]
        found += [path.name for path in weights if path.exists()]
    return found


def _says(path: Path, words: str) -> bool:
    """Whether the file begins as ours do; what is not there is nobody's."""
    if not path.is_file():
        return not path.exists()
    return words in path.read_text("utf-8", errors="replace")[:200]


def locate(path: str | Path, **hub: Any) -> Path:
    """The local folder of a model: itself, or a snapshot of a hub repository."""
    folder = Path(path)
    if folder.is_dir():
        return folder
    if (
        folder.is_absolute()
        or folder.exists()
        or str(path).count("/") != 1
        or str(path).startswith(".")
    ):
        raise CheckpointError(
            f"{path}: no such model folder; give the folder that `train` or save_pretrained wrote"
        )
    from huggingface_hub import snapshot_download

    try:
        return Path(snapshot_download(str(path), **hub))
    except Exception as error:  # the hub's client raises many types, and each means: not to be had
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise CheckpointError(
            f"{path}: no such folder, and no such repository could be fetched ({reason})"
        ) from None


def read(folder: Path, config: type[Any]) -> Stored:
    """The folder's content, or one clear line about what is wrong with it."""
    content = _read_config(folder / CONFIG)
    try:
        settings, card = from_dict(config, content["model"]), from_dict(Card, content["card"])
    except (UserError, KeyError, TypeError) as error:
        raise CheckpointError(
            f"{folder / CONFIG}: damaged ({error}); save the model again"
        ) from None
    companions = {
        path.name.removesuffix(COMPANION): _tensors(path)
        for path in sorted(folder.glob(f"*{COMPANION}"))
    }
    return Stored(folder, settings, card, _tensors(folder / WEIGHTS), companions)


def _write(path: Path, tensors: dict[str, Tensor]) -> None:
    weights = {name: value.detach().cpu().contiguous().clone() for name, value in tensors.items()}
    with replacing(path) as partial:
        save_file(weights, partial)


def _tensors(path: Path) -> dict[str, Tensor]:
    try:
        # Copied, because what safetensors gives is the mapped file: writing to that would change the model.
        tensors = {name: value.clone() for name, value in load_file(path).items()}
    except (SafetensorError, OSError) as error:
        raise CheckpointError(
            f"{path}: cut short, damaged or missing ({str(error).splitlines()[0]}); copy or save it again"
        ) from None
    if broken := _broken(tensors):  # it would answer all the same, and always alike
        raise CheckpointError(f"{path}: NaN in {broken}; copy it again or save it anew")
    return tensors


def _broken(tensors: dict[str, Tensor]) -> str | None:
    """The first tensor with a value that is no number. Infinity is one: masks of attention have it."""
    return next((name for name, value in tensors.items() if value.isnan().any()), None)


def backbone_for(stored: Stored, lent: nn.Module | None) -> nn.Module:
    """A module for the stored weights: a copy of the one lent, or one built from the stored name."""
    if lent is not None:
        _check_classes(stored, uncompiled(lent))
        return copy.deepcopy(uncompiled(lent))
    card = stored.card
    if card.architecture is None:
        raise CheckpointError(
            f"{stored.folder}: this model wraps a class of your own ({card.backbone or 'unnamed'}); "
            "pass an instance in Python, from_pretrained(..., backbone=MyNetwork()). A torchvision or timm model that "
            "is saved with its name, as by train(..., architecture='resnet18'), also loads by itself"
        )
    return build_backbone(
        card.architecture, len(card.classes), channels=card.preprocessing.channels
    )


def _check_classes(stored: Stored, lent: nn.Module) -> None:
    """Raises where a backbone that was given tells other numbers of classes apart."""
    saved = len(stored.card.classes)
    own = class_count(lent, find_classifier(lent, stored.config.selection.classifier))
    if saved and own != saved:
        raise CheckpointError(
            f"{stored.folder}: the saved model has {saved} classes, the backbone given tells {own} apart; build it "
            f"for {saved}"
        )


def fill(model: nn.Module, stored: Stored) -> None:
    """Puts the stored tensors in, in the precision they were saved in, where the model's own are."""
    tensors = model.state_dict()
    own = {name: tuple(value.shape) for name, value in tensors.items()}
    found = {name: tuple(value.shape) for name, value in stored.tensors.items()}
    wrong = sorted(name for name in own.keys() | found.keys() if own.get(name) != found.get(name))
    if wrong:
        name = wrong[0]
        raise CheckpointError(
            f"{stored.folder / WEIGHTS}: does not fit the model: {name} is {found.get(name, 'missing')} in the file "
            f"and {own.get(name, 'unknown')} in the model ({len(wrong)} such tensors); it belongs to another backbone"
        )
    # On the meta device there is no place for them.
    near = {
        name: value if tensors[name].is_meta else value.to(tensors[name].device)
        for name, value in stored.tensors.items()
    }
    before = _precision(model)
    model.load_state_dict(near, assign=True)
    _cast_unsaved(model, before, _precision(model))


def _precision(model: nn.Module) -> torch.dtype:
    return next(value.dtype for value in model.parameters() if value.is_floating_point())


def _cast_unsaved(model: nn.Module, before: torch.dtype, now: torch.dtype) -> None:
    """Buffers that are part of no state, and had the parameters' precision, get it again."""
    saved = model.state_dict().keys()
    for name, value in list(model.named_buffers(remove_duplicate=False)):
        if name not in saved and value.dtype == before:
            parent, _, last = name.rpartition(".")
            setattr(model.get_submodule(parent), last, value.to(now))


def _read_config(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text("utf-8"))
    except FileNotFoundError:
        raise CheckpointError(f"{path}: missing, so {path.parent} is not a saved model") from None
    except (json.JSONDecodeError, UnicodeDecodeError, RecursionError, OSError) as error:
        raise CheckpointError(f"{path}: not readable ({error}); save the model again") from None
    if not isinstance(content, dict) or content.get("library") != "generalizeformer":
        raise CheckpointError(
            f"{path}: written by another library; give a folder that generalizeformer saved"
        )
    if content.get("format") in range(1, FORMAT):
        _complete(content)
    elif content.get("format") != FORMAT:
        raise CheckpointError(
            f"{path}: format {content.get('format')!r}, but this version reads {FORMAT}; upgrade generalizeformer"
        )
    return content


def _complete(content: dict[str, Any]) -> None:
    """Adds what older formats took for granted, so that their models answer as they did.

    Format 1: one answer, by every channel's own move on what the first run saw. Format 2: a classifier that does so.
    Format 3: one bound for moves and for gathering, and all directions alike. Format 4: no models of single images,
    no prototypes, and statistics of one image trusted like those of many. Format 5: the mean of probabilities, mirrored
    or not, and all images of a group alike. Format 6: nothing known of looks.
    """
    model = content.get("model")
    if not isinstance(model, dict):
        return
    generator: Any = model.get("generator")
    ours = isinstance(generator, dict) and generator.get("kind") == "channels"
    if ours:
        generator.setdefault("variation", 0)
    if content["format"] == 6:
        return
    model.setdefault("strengths", [1.0])
    model.setdefault("singly", False)
    model["mirrored"] = "group" if model.get("mirrored") else "no"
    model.setdefault("mean", "probabilities")
    model.setdefault("kin", None)
    if ours:
        for name, value in (("settle", False), ("detail", True), ("gather", False)):
            generator.setdefault(name, value)
        generator.setdefault("pull", generator.get("reach", 1.1))
        for name in ("recall", "prior"):
            generator.setdefault(name, 0.0)
        generator.setdefault("away", 1.0)

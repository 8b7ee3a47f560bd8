"""`predict`: image files in, classes out."""

import csv
import io
import json
import random
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, NoReturn

import tyro

from generalizeformer.atomic import write_text
from generalizeformer.cli._settings import method_settings
from generalizeformer.cli._terminal import (
    Device,
    aside,
    check_model,
    make_folder,
    pick_device,
    printable,
)
from generalizeformer.errors import DataError, ImageError, UserError
from generalizeformer.seeds import derive

if TYPE_CHECKING:
    from torch import Tensor

    from generalizeformer.adapters._protocol import Adapter
    from generalizeformer.core.generalizeformer import GeneralizeFormer
    from generalizeformer.core.preprocessing import Preprocessing

NAMED = 3  # files of a kind that are told by name; of the others, how many they are


def predict(
    run: Annotated[Path, tyro.conf.Positional],
    images: Annotated[tuple[Path, ...], tyro.conf.Positional],
    /,
    batch_size: int = 20,
    in_order: bool = False,
    method: str = "generalizeformer",
    settings: Path | None = None,
    format: Literal["json", "csv"] = "json",
    out: Path | None = None,
    skip_unreadable: bool = False,
    device: Device = "auto",
) -> None:
    """Classify image files with parameters generated for every batch of them.

    Args:
        run: Folder of a trained model.
        images: Files, or folders that are searched for images.
        batch_size: Images that share generated parameters; 1 treats each alone. Which images share a batch is drawn,
            alike in every call, because folders are often sorted by class, and batches of one class are hard to adapt
            to. Answers keep the order of the files.
        in_order: Make batches of neighbours instead, for images whose neighbours belong together, as those of a stream.
        method: How to adapt; `source` is the plain model. `generalizeformer evaluate` compares methods.
        settings: JSON file with settings of methods, such as {"tent": {"steps": 2}}; defaults if not given.
        format: Of the answers.
        out: File for the answers; standard output if not given.
        skip_unreadable: Go on without files that are no images and folders that may not be read, and name them; else
            the first one ends it.
        device: Where to compute; auto takes a GPU if there is one.
    """
    from generalizeformer.benchmark.runner import build_adapter
    from generalizeformer.core.generalizeformer import GeneralizeFormer
    from generalizeformer.imaging.finding import find_images, left_out

    check_model(run)
    if method == "all":
        raise UserError(
            "method: got 'all', but answers are those of one method; `generalizeformer evaluate RUN --methods all` "
            "compares them"
        )
    if batch_size < 1:
        raise DataError(f"batch size: got {batch_size}; it must be at least 1")
    if out is not None:
        _check_out(out, format)
    own = method_settings(settings).get(method, {})
    refuse = _told if skip_unreadable else _refused
    files = find_images(images, refuse)
    if others := left_out(images):
        _told(_of_other_kinds(others))
    model = GeneralizeFormer.from_pretrained(run).to(pick_device(device)).eval()
    adapter, _ = build_adapter(method, model, **own)
    answers = _answers(model, adapter, _batches(files, batch_size, in_order), refuse)
    _write(json.dumps(answers, indent=1) + "\n" if format == "json" else _csv(answers), out)
    if len(answers) < len(files):
        aside.print(f"left out, as above: {len(files) - len(answers)} of {len(files)} files")
    if out is not None:
        aside.print(f"{len(answers)} answers in {out}", soft_wrap=True)


def _check_out(out: Path, ending: str) -> None:
    """Raises where the answers cannot be written: before they are made, not after it."""
    if out.is_dir():
        raise DataError(
            f"{out}: is a folder; name a file for the answers, such as {out}/answers.{ending}"
        )
    make_folder(out.parent)


def _batches(files: Sequence[Path], size: int, in_order: bool) -> list[list[tuple[int, Path]]]:
    """Which files are answered together, with their places among all of them."""
    numbered = list(enumerate(files))
    if not in_order:
        random.Random(derive("batches of files")).shuffle(numbered)
    return [sorted(numbered[start : start + size]) for start in range(0, len(files), size)]


def _read(
    files: Sequence[tuple[int, Path]], prepare: "Preprocessing", refuse: Callable[[str], None]
) -> "list[tuple[int, Path, Tensor]]":
    """Every file with its place and its pixels, (1, c, size, size). `refuse` hears of those that cannot be read."""
    from generalizeformer.imaging.files import read_images

    read = []
    for place, file in files:
        try:
            read.append((place, file, read_images([file], prepare.channels, prepare.size)))
        except ImageError as error:
            refuse(str(error))
    return read


def _of_other_kinds(files: Sequence[Path]) -> str:
    """How many images are of kinds that are not read here, and the first of them."""
    kinds = ", ".join(sorted({file.suffix.lower() for file in files}))
    named = ", ".join(map(str, files[:NAMED]))
    more = f" and {len(files) - NAMED} more" if len(files) > NAMED else ""
    count = f"{len(files)} image{'s' if len(files) > 1 else ''}"
    return f"{count} of kinds that are not read here ({kinds}); convert to png: {named}{more}"


def _told(words: str) -> None:
    aside.print(f"left out: {words}", soft_wrap=True)


def _refused(words: str) -> NoReturn:
    raise DataError(f"{words}, or go on without it: --skip-unreadable") from None


def _answers(
    model: "GeneralizeFormer",
    adapter: "Adapter",
    batches: list[list[tuple[int, Path]]],
    refuse: Callable[[str], None],
) -> list[dict[str, Any]]:
    """The answers of all batches, in the order of the files."""
    found: dict[int, dict[str, Any]] = {}
    done, count = 0, sum(map(len, batches))
    with aside.status("predicting") as status:
        for number, batch in enumerate(batches):
            status.update(f"predicting: {done} of {count} images")
            if read := _read(batch, model.card.preprocessing, refuse):
                found |= _answer(model, adapter, read, number)
            done += len(batch)
    if not found:
        raise ImageError("nothing could be read, as told above; name at least one image")
    return [found[place] for place in sorted(found)]


def _answer(
    model: "GeneralizeFormer",
    adapter: "Adapter",
    read: "list[tuple[int, Path, Tensor]]",
    batch: int,
) -> dict[int, dict[str, Any]]:
    """The answers of one batch under the places of their files."""
    import torch

    prepare, classes = model.card.preprocessing, model.card.classes
    places, files, pixels = zip(*read, strict=True)
    images = prepare(torch.cat(pixels).to(next(model.parameters()).device))
    sure, best = adapter.step(images).softmax(1).max(1)
    return {
        place: {"file": str(file), "class": classes[k], "probability": round(p, 4), "batch": batch}
        for place, file, k, p in zip(places, files, best.tolist(), sure.tolist(), strict=True)
    }


def _csv(answers: list[dict[str, Any]]) -> str:
    text = io.StringIO()
    writer = csv.DictWriter(text, ["file", "class", "probability", "batch"], lineterminator="\n")
    writer.writeheader()
    for answer in answers:  # json has escapes of its own for names that are no UTF-8
        named = {name: printable(answer[name]) for name in ("file", "class")}
        writer.writerow(answer | named)
    return text.getvalue()


def _write(text: str, out: Path | None) -> None:
    if out is None:
        sys.stdout.write(text)
        return
    write_text(out, text)

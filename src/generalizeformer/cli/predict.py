"""`predict`: image files in, classes out."""

import csv
import io
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro

from generalizeformer.cli._terminal import console
from generalizeformer.cli.evaluate import pick_device
from generalizeformer.errors import DataError


def predict(
    run: Annotated[Path, tyro.conf.Positional],
    images: Annotated[tuple[Path, ...], tyro.conf.Positional],
    /,
    batch_size: int = 20,
    method: str = "generalizeformer",
    format: Literal["json", "csv"] = "json",
    out: Path | None = None,
    device: Literal["auto", "cpu", "cuda", "mps"] = "auto",
) -> None:
    """Classify image files with parameters generated for every batch of them.

    Args:
        run: Folder of a trained model.
        images: Files, or folders that are searched for images.
        batch_size: Images that share generated parameters, in the order given; 1 treats each alone.
        method: How to adapt; `source` is the plain model.
        format: Of the answers.
        out: File for the answers; standard output if not given.
        device: Where to compute; auto takes a GPU if there is one.
    """
    from generalizeformer.benchmark.runner import build_adapter
    from generalizeformer.core.generalizeformer import GeneralizeFormer
    from generalizeformer.data.files import find_images

    if batch_size < 1:
        raise DataError(f"batch size: got {batch_size}; it must be at least 1")
    files = find_images(images)
    model = GeneralizeFormer.from_pretrained(run).to(pick_device(device)).eval()
    adapter, _ = build_adapter(method, model)
    answers: list[dict[str, Any]] = []
    with console.status("predicting") if out else _silence():
        for start in range(0, len(files), batch_size):
            answers += _answer(
                model, adapter, files[start : start + batch_size], start // batch_size
            )
    text = json.dumps(answers, indent=1) + "\n" if format == "json" else _csv(answers)
    if out is None:
        sys.stdout.write(text)
    else:
        out.write_text(text)
        console.print(f"{len(answers)} answers in {out}")


def _answer(model: Any, adapter: Any, files: Sequence[Path], batch: int) -> list[dict[str, Any]]:
    from generalizeformer.data.files import read_images

    prepare, classes = model.card.preprocessing, model.card.classes
    pixels = read_images(files, prepare.channels, prepare.size)
    device = next(model.parameters()).device
    sure, best = adapter.step(prepare(pixels.to(device))).softmax(1).max(1)
    return [
        {"file": str(file), "class": classes[k], "probability": round(p, 4), "batch": batch}
        for file, k, p in zip(files, best.tolist(), sure.tolist(), strict=True)
    ]


def _csv(answers: list[dict[str, Any]]) -> str:
    text = io.StringIO()
    writer = csv.DictWriter(text, ["file", "class", "probability", "batch"], lineterminator="\n")
    writer.writeheader()
    writer.writerows(answers)
    return text.getvalue()


def _silence() -> Any:
    from contextlib import nullcontext

    return nullcontext()

"""`reproduce`: the records of a plan, which names the parts of a benchmark in a file beside them."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import tyro

from generalizeformer.cli._parts import Machine, Part, told_of
from generalizeformer.cli._settings import read_json
from generalizeformer.cli.benchmark import record
from generalizeformer.errors import UserError

PLAN = "plan.json"


def reproduce(
    folder: Annotated[Path, tyro.conf.Positional],
    /,
    parts: tuple[str, ...] = (),
    out: Path | None = None,
    where: Annotated[Machine, tyro.conf.OmitArgPrefixes] = Machine(),  # noqa: B008, it is frozen
) -> None:
    """Make the records of a plan, those that are not there yet, in its order. Run again, it goes on.

    FOLDER/plan.json has "parts": by name what `benchmark` is to be asked for, each with the flags of that verb as
    keys; and "shared": what all of them are asked for. All parts share one dataset and the same processes.

    Args:
        folder: With plan.json and the settings that it names.
        parts: Parts of the plan to be recorded, in this order; all if none is named.
        out: Folder for the results; the plan's if not given.
        where: Where it runs, and for how long.
    """
    plan = read_plan(folder)
    for name in parts:
        if name not in plan:
            raise UserError(
                f"parts: {folder / PLAN} has no {name!r}; choose from: {', '.join(plan)}"
            )
    record(plan, out or folder, where, parts)


@dataclass(frozen=True, kw_only=True)
class Plan:
    """As the file has it."""

    parts: dict[str, dict[str, Any]]
    shared: dict[str, Any]


def read_plan(folder: Path) -> dict[str, Part]:
    """The parts of the plan in this folder, by name. Files that it names lie beside it."""
    from generalizeformer.config import from_dict

    path = folder / PLAN
    if not path.exists():
        raise UserError(f"{folder}: it has no {PLAN}; give a folder with one, such as results/pacs")
    content = read_json(path)
    try:
        plan = from_dict(Plan, {"shared": {}, **content})
        if not plan.parts:
            raise UserError('there are no parts; give {"parts": {"main": {"batch_sizes": [20]}}}')
        parts = {name: _part(name, plan.shared | asked) for name, asked in plan.parts.items()}
    except UserError as error:
        raise UserError(f"{path}: {error}") from None
    return {name: _placed(part, folder) for name, part in parts.items()}


def _part(name: str, asked: dict[str, Any]) -> Part:
    from generalizeformer.config import from_dict

    with told_of(name):
        return from_dict(Part, asked)


def _placed(part: Part, folder: Path) -> Part:
    """The part with its files where the plan is."""
    paper = part.paper_settings
    return replace(
        part,
        settings=tuple(str(folder / name) for name in part.settings),
        paper_settings=None if paper is None else str(folder / paper),
    )

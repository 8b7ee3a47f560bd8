"""Settings from a JSON file, laid over those of the flags."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from generalizeformer.errors import UserError

if TYPE_CHECKING:
    from generalizeformer.training._recipe import Recipe


def overridden(recipe: "Recipe", path: Path) -> "Recipe":
    """The recipe with the settings of a JSON file laid over it."""
    from generalizeformer.config import from_dict, to_dict

    try:
        changes = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise UserError(
            f"{path}: no readable JSON settings ({error}); give a JSON object"
        ) from None
    if not isinstance(changes, dict):
        raise UserError(f"{path}: got {type(changes).__name__}; settings are a JSON object")
    try:
        return from_dict(type(recipe), _merged(to_dict(recipe), changes))
    except UserError as error:
        raise UserError(f"{path}: {error}") from None


def _merged(base: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    both = {
        key: _merged(base[key], value)
        if isinstance(value, dict) and isinstance(base.get(key), dict)
        else value
        for key, value in changes.items()
    }
    return base | both

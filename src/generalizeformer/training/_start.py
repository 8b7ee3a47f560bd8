"""Before the first step: whether the backbone fits the data, what it starts from, what it measures of the sources."""

import copy
import hashlib
from collections.abc import Mapping
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from generalizeformer.config import to_dict
from generalizeformer.core.generalizeformer import GeneralizeFormer
from generalizeformer.core.inputs import accepted_channels
from generalizeformer.core.preprocessing import Preprocessing
from generalizeformer.core.settings import Config
from generalizeformer.data.domains import Domain, DomainDataset
from generalizeformer.errors import DataError, UserError
from generalizeformer.imaging.looks import Config as Looks
from generalizeformer.imaging.looks import apply as apply_looks
from generalizeformer.seeds import derive

AT_ONCE = 512  # images that are fingerprinted together
_DESCRIBED: WeakKeyDictionary[Domain, str] = WeakKeyDictionary()
PER_DOMAIN = (
    256  # images that the reference and the prototypes are measured on, unless told otherwise
)
# Looks that statistics are learned to vary in: so many of each domain, so many images of each; one in six is none.
LOOKS, OF_EACH, PLAIN = 24, 24, 6
VARIED = Looks(geometry=True)
ModuleT = TypeVar("ModuleT", bound=nn.Module)


@torch.no_grad()
def check_fits(backbone: nn.Module, data: DomainDataset, preprocessing: Preprocessing) -> None:
    """Raises where the backbone cannot answer these images with these classes: before any training, not after it."""
    _check_precision(backbone)
    images = _two(data, preprocessing, backbone)
    try:
        logits = backbone.eval()(images)
    except Exception as error:  # every architecture refuses images in its own way
        raise _unfit(backbone, images, error) from None
    _check_plain(backbone, logits, "")
    if tuple(logits.shape) != (len(images), len(data.classes)):
        raise DataError(
            f"backbone: {type(backbone).__name__} answers {len(images)} images with {tuple(logits.shape)}; "
            f"{data.name} has {len(data.classes)} classes, so build it for those"
        )


def check_serves(
    backbone: nn.Module, config: Config, data: DomainDataset, preprocessing: Preprocessing
) -> None:
    """Raises where nothing can be generated for the backbone, which some tell only when they answer.

    The random numbers of the training are left as they were, and a copy is tried, so that the backbone is as well.
    """
    with torch.random.fork_rng([]):
        model = GeneralizeFormer(copy.deepcopy(backbone), config)
        model.observe(_two(data, preprocessing, backbone))


def _two(data: DomainDataset, preprocessing: Preprocessing, backbone: nn.Module) -> Tensor:
    """Two images, or one where there is one, where the backbone is."""
    pixels = data.domains[0].read(torch.arange(min(2, len(data.domains[0]))))
    return preprocessing(pixels.to(next(backbone.parameters()).device))


def _unfit(backbone: nn.Module, images: Tensor, error: Exception) -> UserError:
    """Why the backbone refuses the images, as far as that can be told."""
    name, count, taken = type(backbone).__name__, images.shape[1], accepted_channels(backbone)
    if taken and count not in taken:
        grey = " (pixels.repeat(1, 3, 1, 1), or numpy's pixels.repeat(3, 1))" if count == 1 else ""
        return UserError(
            f"backbone: {name} takes images of {taken[0]} channels, but these have {count}; convert them{grey}, or "
            "build the backbone for theirs"
        )
    reason = (str(error).splitlines() or [type(error).__name__])[0]
    return UserError(
        f"backbone: {name} does not take images of shape {tuple(images.shape[1:])} ({reason}); choose another image "
        "size or another backbone"
    )


def _check_precision(backbone: nn.Module) -> None:
    """Raises where weights have another precision than the images that they will meet."""
    kinds = {value.dtype for value in backbone.parameters() if value.is_floating_point()}
    if others := kinds - {torch.float32}:
        raise UserError(
            f"backbone: {type(backbone).__name__} has parameters of {', '.join(sorted(map(str, others)))}, but it is "
            "trained in torch.float32; give it as backbone.float(), and for speed a Fabric(precision='bf16-mixed')"
        )


def check_learns(backbone: nn.Module, data: DomainDataset, preprocessing: Preprocessing) -> None:
    """Raises where nothing in a backbone that is to be trained may move, or its answers cannot be learned from."""
    if not any(value.requires_grad for value in backbone.parameters()):
        raise UserError(
            f"backbone: no parameter of {type(backbone).__name__} requires a gradient, but the recipe trains it; call "
            "backbone.requires_grad_(), or keep it as it is with Recipe(episodes='looks', erm=None)"
        )
    images = _two(data, preprocessing, backbone)
    with torch.random.fork_rng([]), torch.no_grad():  # dropout draws
        try:
            answer = copy.deepcopy(backbone).train()(images.repeat(2, 1, 1, 1))
        except Exception as error:  # every architecture refuses images in its own way
            raise _unfit(backbone, images, error) from None
    _check_plain(backbone, answer, " while it is trained")


def _check_plain(backbone: nn.Module, answer: object, when: str) -> None:
    """Raises where an answer is not a tensor, but holds one."""
    if not isinstance(answer, Tensor):
        raise UserError(
            f"backbone: {type(backbone).__name__} answers with a {type(answer).__name__}{when}; it must return the "
            "logits alone, so switch further heads off (in torchvision aux_logits=False), or wrap it in a module that "
            "picks the logits"
        )


def near(data: DomainDataset, device: torch.device) -> DomainDataset:
    """The data on the GPU where it takes less than a third of what is free there, else as it is."""
    if device.type != "cuda":
        return data
    needed = sum(len(domain) * domain.stored[:1].numel() for domain in data.domains)
    return data.to(device) if needed < torch.cuda.mem_get_info(device)[0] / 3 else data


def placed(module: ModuleT, device: torch.device) -> ModuleT:
    """The module on that device; on GPUs and CPUs with its channels last, which halves the time of a training step."""
    module = module.to(device)
    faster = device.type in ("cuda", "cpu")
    return _laid(module, torch.channels_last) if faster else module


def plain(module: ModuleT) -> ModuleT:
    """The module as it would be loaded: how weights lie in memory decides how answers are rounded."""
    return _laid(module, torch.contiguous_format)


def _laid(module: ModuleT, layout: torch.memory_format) -> ModuleT:
    """The module with its maps' weights laid out so. Others have no channels to be first or last."""
    for tensor in (*module.parameters(), *module.buffers()):
        if tensor.dim() == 4:
            # Kernels of one pixel pass for well laid out either way; a copy is sure to be.
            tensor.data = tensor.data.clone(memory_format=layout)
    return module


def origin(start: nn.Module, data: DomainDataset, preprocessing: Preprocessing) -> dict[str, Any]:
    """What a training starts from, in words that change when any weight, pixel or label does."""
    return {
        "starting weights": fingerprint(start.state_dict()),
        "domains": [described(domain) for domain in data.domains],
        "preprocessing": to_dict(preprocessing),
    }


def fingerprint(tensors: Mapping[str, Tensor]) -> str:
    """Twelve hexadecimal digits that change when any name, shape or value does."""
    content = hashlib.sha256()
    for name, value in tensors.items():
        content.update(f"{name} {tuple(value.shape)}".encode())
        content.update(value.cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return content.hexdigest()[:12]


def described(domain: Domain) -> str:
    """A domain in words. Looked at once: a benchmark trains on the same domains many times."""
    if domain not in _DESCRIBED:
        _DESCRIBED[domain] = f"{domain.name} ({len(domain)} images, {_digest(domain)})"
    return _DESCRIBED[domain]


def _digest(domain: Domain) -> str:
    content = hashlib.sha256(fingerprint({"labels": domain.labels}).encode())
    for places in torch.split(
        torch.arange(len(domain)), AT_ONCE
    ):  # a domain may be larger than memory
        content.update(domain.read(places).cpu().numpy().data)
    return content.hexdigest()[:12]


def calibrate(
    model: GeneralizeFormer,
    data: DomainDataset,
    preprocessing: Preprocessing,
    per_domain: int = PER_DOMAIN,
    with_looks: bool = True,
) -> None:
    """Measures what so many images of each domain look like to the model, where it wants to know; `with_looks`: and how
    they vary under random looks.
    """
    if model.reference.layers or model.prototypes is not None:
        pixels = torch.cat([_spread(domain, per_domain) for domain in data.domains])
        model.calibrate(preprocessing(pixels.to(next(model.parameters()).device)))
    if with_looks and model.variation is not None:
        device = next(model.parameters()).device
        # One image does not tell how images of a look differ.
        told = [domain for domain in data.domains if len(domain) > 1]
        made = [look for domain in told for look in under_looks(domain, device)]
        if not made:
            return  # then no group is ever found to be mixed
        sizes = torch.tensor([len(look) for look in made])
        looks = torch.arange(len(made)).repeat_interleave(sizes)
        model.learn_looks(torch.cat([preprocessing(look) for look in made]), looks)


def under_looks(domain: Domain, device: torch.device) -> list[Tensor]:
    """Images of the domain under random looks, a few of each. The same on every call."""
    generator = torch.Generator().manual_seed(derive("looks that statistics vary in", domain.name))
    made = []
    for number in range(LOOKS):
        drawn = domain.read(torch.randperm(len(domain), generator=generator)[:OF_EACH]).to(device)
        alike = torch.zeros(len(drawn), dtype=torch.long, device=device)
        as_it_is = number % PLAIN == 0
        made.append(drawn if as_it_is else apply_looks(drawn, alike, generator, VARIED))
    return made


def _spread(domain: Domain, count: int) -> torch.Tensor:
    """Images spread evenly over the domain: stored images are often sorted by class."""
    return domain.read(torch.linspace(0, len(domain) - 1, min(count, len(domain))).long())

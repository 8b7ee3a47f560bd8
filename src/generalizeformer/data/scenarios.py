"""Published ways in which targets arrive, by name: every function gives streams with the published settings."""

from collections.abc import Sequence

from generalizeformer.data.streams import Stream
from generalizeformer.imaging.corruptions import NAMES

# In the order of Yuan et al., 2023 (RoTTA).
PRACTICAL = (
    "motion_blur",
    "snow",
    "fog",
    "shot_noise",
    "defocus_blur",
    "contrast",
    "zoom_blur",
    "brightness",
    "frost_synth",
    "elastic_transform",
    "glass_blur",
    "gaussian_noise",
    "pixelate",
    "jpeg_compression",
    "impulse_noise",
)
UP_AND_DOWN = (1, 2, 3, 4, 5, 4, 3, 2, 1)  # severities of a gradual stream
FULL_TURN, JITTER = 90, 5  # degrees, of a gradual rotation


def continual_corruptions(
    domain: str, severity: int = 5, batch_size: int = 64, seed: int = 0
) -> Stream:
    """One corruption after another without a sign of the change (Wang et al., 2022, CoTTA)."""
    return Stream(_corrupted(domain, NAMES, (severity,)), batch_size, seed, order="in_turn")


def gradual_corruptions(domain: str, batch_size: int = 64, seed: int = 0) -> Stream:
    """As the continual one, but every corruption comes and goes slowly: severities 1 to 5 and back to 1."""
    return Stream(_corrupted(domain, NAMES, UP_AND_DOWN), batch_size, seed, order="in_turn")


def mixed_corruptions(
    domain: str, severity: int = 5, batch_size: int = 64, seed: int = 0
) -> Stream:
    """All corruptions in one stream, mixed image by image (Niu et al., 2023, SAR)."""
    return Stream(_corrupted(domain, NAMES, (severity,)), batch_size, seed)


def practical_corruptions(
    domain: str, severity: int = 5, batch_size: int = 64, seed: int = 0
) -> Stream:
    """One corruption after another, and labels in runs (Yuan et al., 2023, RoTTA)."""
    return Stream(_corrupted(domain, PRACTICAL, (severity,)), batch_size, seed, order="slots")


def gradual_rotation(
    domain: str, steps: int = 91, there_and_back: bool = False, batch_size: int = 20, seed: int = 0
) -> Stream:
    """One pass over the images while they turn by 90 degrees, every angle jittered by 5."""
    angles = [FULL_TURN * step / max(1, steps - 1) for step in range(steps)]
    settings = {"jitter": JITTER / FULL_TURN, "there_and_back": there_and_back}
    words = tuple(f"{domain}@rotation:{angle:g}" for angle in angles)
    return Stream(words, batch_size, seed, order="one_pass", settings=settings)


def recurring(targets: Sequence[str], batch_size: int = 20, seed: int = 0) -> Stream:
    """The targets in turn, ten times over, 400 images at every visit."""
    return Stream(tuple(targets), batch_size, seed, order="recurring")


def correlated(
    targets: Sequence[str], beta: float = 0.1, batch_size: int = 64, seed: int = 0
) -> Stream:
    """Target after target, labels in runs (Gong et al., 2022, NOTE)."""
    return Stream(tuple(targets), batch_size, seed, order="dirichlet", settings={"beta": beta})


def _corrupted(domain: str, names: Sequence[str], severities: Sequence[int]) -> tuple[str, ...]:
    return tuple(f"{domain}@{name}:{severity}" for name in names for severity in severities)

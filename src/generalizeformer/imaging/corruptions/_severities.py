"""The published constants of every corruption, severities 1 to 5, for large and for small images.

Those for ImageNet-C were chosen at 224 pixels, those for CIFAR-10-C at 32. Lengths in pixels stay as published
whatever the size of an image, but for elastic_transform, whose lengths are shares of the shorter side.
"""

LARGE = 64  # shorter side in pixels from which images take the constants of ImageNet-C

Constants = tuple[tuple[float, ...], ...]

# ImageNet-C's elastic lengths are multiples of 244 pixels, for images of 224.
_E = 244 / 224

_IMAGENET: dict[str, Constants] = {
    # standard deviation
    "gaussian_noise": ((0.08,), (0.12,), (0.18,), (0.26,), (0.38,)),
    # photons that make a white pixel
    "shot_noise": ((60,), (25,), (12,), (5,), (3,)),
    # share of values lost
    "impulse_noise": ((0.03,), (0.06,), (0.09,), (0.17,), (0.27,)),
    # radius of the disk, sigma that softens its rim
    "defocus_blur": ((3, 0.1), (4, 0.5), (6, 0.5), (8, 0.5), (10, 0.5)),
    # sigma, farthest shift, rounds
    "glass_blur": ((0.7, 1, 2), (0.9, 2, 1), (1, 2, 3), (1.1, 3, 2), (1.5, 4, 2)),
    # radius, sigma
    "motion_blur": ((10, 3), (15, 5), (15, 8), (15, 12), (20, 15)),
    # number of zooms, counting 1; step between them
    "zoom_blur": ((12, 0.01), (16, 0.01), (11, 0.02), (13, 0.02), (11, 0.03)),
    # mean and deviation of the noise, its zoom, threshold, radius, sigma, weight of the image
    "snow": (
        (0.1, 0.3, 3, 0.5, 10, 4, 0.8),
        (0.2, 0.3, 2, 0.5, 12, 4, 0.7),
        (0.55, 0.3, 4, 0.9, 12, 8, 0.7),
        (0.55, 0.3, 4.5, 0.85, 12, 8, 0.65),
        (0.55, 0.3, 2.5, 0.85, 12, 12, 0.55),
    ),
    # weight of the image, weight of the frost
    "frost_synth": ((1, 0.4), (0.8, 0.6), (0.7, 0.7), (0.65, 0.7), (0.6, 0.75)),
    # thickness, decay of roughness
    "fog": ((1.5, 2), (2, 2), (2.5, 1.7), (2.5, 1.5), (3, 1.4)),
    # added to the value
    "brightness": ((0.1,), (0.2,), (0.3,), (0.4,), (0.5,)),
    # share of contrast kept
    "contrast": ((0.4,), (0.3,), (0.2,), (0.1,), (0.05,)),
    # strength, smoothness, affine jitter, in shorter sides
    "elastic_transform": (
        (_E * 2, _E * 0.7, _E * 0.1),
        (_E * 2, _E * 0.08, _E * 0.2),
        (_E * 0.05, _E * 0.01, _E * 0.02),
        (_E * 0.07, _E * 0.01, _E * 0.02),
        (_E * 0.12, _E * 0.01, _E * 0.02),
    ),
    # share of pixels kept along a side
    "pixelate": ((0.6,), (0.5,), (0.4,), (0.3,), (0.25,)),
    # quality
    "jpeg_compression": ((25,), (18,), (15,), (10,), (7,)),
}

_CIFAR: dict[str, Constants] = {
    "gaussian_noise": ((0.04,), (0.06,), (0.08,), (0.09,), (0.10,)),
    "shot_noise": ((500,), (250,), (100,), (75,), (50,)),
    "impulse_noise": ((0.01,), (0.02,), (0.03,), (0.05,), (0.07,)),
    "defocus_blur": ((0.3, 0.4), (0.4, 0.5), (0.5, 0.6), (1, 0.2), (1.5, 0.1)),
    "glass_blur": ((0.05, 1, 1), (0.25, 1, 1), (0.4, 1, 1), (0.25, 1, 2), (0.4, 1, 2)),
    "motion_blur": ((6, 1), (6, 1.5), (6, 2), (8, 2), (9, 2.5)),
    "zoom_blur": ((7, 0.01), (12, 0.01), (16, 0.01), (21, 0.01), (26, 0.01)),
    "snow": (
        (0.1, 0.2, 1, 0.6, 8, 3, 0.95),
        (0.1, 0.2, 1, 0.5, 10, 4, 0.9),
        (0.15, 0.3, 1.75, 0.55, 10, 4, 0.9),
        (0.25, 0.3, 2.25, 0.6, 12, 6, 0.85),
        (0.3, 0.3, 1.25, 0.65, 14, 12, 0.8),
    ),
    "frost_synth": ((1, 0.2), (1, 0.3), (0.9, 0.4), (0.85, 0.4), (0.75, 0.45)),
    "fog": ((0.2, 3), (0.5, 3), (0.75, 2.5), (1, 2), (1.5, 1.75)),
    "brightness": ((0.05,), (0.1,), (0.15,), (0.2,), (0.3,)),
    "contrast": ((0.75,), (0.5,), (0.4,), (0.3,), (0.15,)),
    "elastic_transform": (
        (0, 0, 0.08),
        (0.05, 0.2, 0.07),
        (0.08, 0.06, 0.06),
        (0.1, 0.04, 0.05),
        (0.1, 0.03, 0.03),
    ),
    "pixelate": ((0.95,), (0.9,), (0.85,), (0.75,), (0.65,)),
    "jpeg_compression": ((80,), (65,), (58,), (50,), (40,)),
}


def constants(name: str, severity: int, shorter_side: int) -> tuple[float, ...]:
    """The constants of one corruption and severity for images of this size."""
    table = _IMAGENET if shorter_side >= LARGE else _CIFAR
    return table[name][severity - 1]

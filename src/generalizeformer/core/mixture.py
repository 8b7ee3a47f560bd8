"""Answers of several models as one."""

from typing import Literal

import torch

from generalizeformer.core.shapes import Logits

Mean = Literal["logits", "probabilities"]


def mixture(answers: list[Logits], mean: Mean = "logits") -> Logits:
    """The mean of the answers' logits, or of their probabilities, at the height of the first one's.

    Equal answers give that answer bit for bit: a φ that does nothing must not change the last digit.
    """
    if mean == "logits":
        if torch.is_autocast_enabled(answers[0].device.type):  # as it does to probabilities itself
            answers = [answer.float() for answer in answers]
        return answers[0] + torch.stack([answer - answers[0] for answer in answers]).mean(0)
    likely = torch.stack([answer.log_softmax(-1) for answer in answers])
    highest = likely.amax(0)
    gained = (likely - highest).exp().mean(0).log() + (highest - likely[0])
    return answers[0] + gained

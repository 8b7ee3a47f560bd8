"""GeneralizeFormer: a model generated for each target batch. Start reading here."""

from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import torch
from huggingface_hub import ModelHubMixin
from torch import Tensor, nn

from generalizeformer.core import artefact, building, change
from generalizeformer.core.card import Card
from generalizeformer.core.classifiers import class_count
from generalizeformer.core.generators import channels
from generalizeformer.core.grouped import GroupedBackbone, Output, Question
from generalizeformer.core.groups import Grouping, grouping
from generalizeformer.core.guard import between, guarded
from generalizeformer.core.inputs import (
    accepted_channels,
    check_gradients_pass,
    check_images,
    check_module,
    is_of_memory,
    uncompiled,
)
from generalizeformer.core.kinship import kindred
from generalizeformer.core.losses import LOSSES
from generalizeformer.core.mixture import mixture
from generalizeformer.core.observation import Observation, observe
from generalizeformer.core.reference import Reference
from generalizeformer.core.settings import Config
from generalizeformer.core.shapes import Groups, Images, Logits, Params
from generalizeformer.core.slots import find_slots, towards
from generalizeformer.core.statistics import Statistics, joined, pool_all
from generalizeformer.errors import DataError, ImageError

AT_ONCE = 128  # source images that are looked at together
ROUNDS = 2  # of learning looks

Model = TypeVar("Model", bound="GeneralizeFormer")  # typing.Self cannot be checked method by method


class GeneralizeFormer(nn.Module, ModelHubMixin):
    """Answers every group of images with models generated from that group alone (Alg. 2).

    The backbone stays the caller's: it is never written to, its mode does not matter, and no gradient
    reaches it. Nothing is carried from call to call, or from group to group.
    """

    @torch.inference_mode(False)  # φ is to be trained, whatever the caller does without
    def __init__(
        self, backbone: nn.Module, config: Config | None = None, card: Card | None = None
    ) -> None:
        super().__init__()
        check_module(backbone)
        check_gradients_pass(backbone)
        self.config = config or Config()
        self.backbone = backbone = uncompiled(backbone)
        self.slots = find_slots(backbone, self.config.selection)
        self.classes = class_count(backbone, self.slots.classifier)
        self.card = self._named(card or Card())
        self.prototypes = building.prototypes(self.config, backbone, self.slots)
        self.variation = building.variation(self.config, backbone, self.slots)
        self.likeness = building.likeness(self.config, backbone, self.variation)
        self.network = GroupedBackbone(backbone, self.slots, variation=self.variation)
        self.reference = Reference(backbone, self.slots)
        self.generator = building.generator(self.config, backbone, self.slots)
        # What compared methods were trained to know, by method; never part of an answer of ours.
        self.companions: dict[str, dict[str, Tensor]] = {}

    def forward(self, images: Images, groups: Groups | None = None) -> Logits:
        """Logits of every image: the mean over the source, a model from its group and its own, as the config says.

        `groups`: one id per image.
        """
        config, mirrored = self.config, self.config.mirrored or "no"
        if not config.singly:
            # Images that are not looked at one by one cannot be told apart.
            seen = self._alike(self.observe(images, groups))
            asked = self._questions(seen, seen.grouping, mirrored != "no")
            return self._mean(seen, self.network.answer(asked))
        each = self.observe(images, torch.arange(len(images)))
        together = grouping(groups, len(images), images)
        if len(together.sizes) == len(images):
            # Groups of one image: the group's model is the image's own, so what both answer counts twice.
            each = self._alike(each)  # and one image is of one look
            asked = self._questions(each, each.grouping, mirrored != "no")
            answers = self.network.answer(asked)
            both = len(answers) // 2 if mirrored == "group" else len(answers)
            return self._mean(each, answers + answers[:both])
        pooled = self._pooled(each, together)
        known = pooled.grouping
        each = _with(each, mixed=known.mixed, alike=known.alike)
        apart = each.grouping if known.kin is None else known.each()
        asked = self._questions(pooled, pooled.grouping, mirrored != "no")
        asked += self._questions(each, apart, mirrored == "all")
        return self._mean(each, self.network.answer(asked))

    def generate(self, images: Images, groups: Groups | None = None) -> Params:
        """θ_t: parameter name → tensor with a leading group axis, groups in the order of their ids.

        The parameters at strength 1, of the group as a whole; `forward` averages answers as the config says.
        """
        seen = self.observe(images, groups)
        mixed = None
        if self.likeness is not None and self.config.singly:
            with torch.no_grad():
                alone = self.reference.relate(self._watch(images).statistics)
            mixed = self._mixed(alone, seen.grouping)
        seen = self._alike(seen) if mixed is None else _with(seen, mixed=mixed)
        target, settled = self._generate(seen), {}
        if any(towards(slot.layer) in target for slot in self.slots):
            settled = self.network.run(seen.images, seen.grouping, target).settled
        names = [name for slot in self.slots for name in slot.names]
        return {name: settled.get(name, target[name]) for name in names}

    def observe(self, images: Images, groups: Groups | None = None) -> Observation:
        """z_t and g_t of every group, from the source model."""
        check_images(images, self.backbone)
        source = self.slots.parameters_of(self.backbone)
        together = grouping(groups, len(images), images)
        views = self.config.views if self.config.loss == "memo" else 1
        loss = LOSSES[self.config.loss]
        try:
            seen = observe(self.network, source, images, together, loss, views)
        except RuntimeError as error:
            if is_of_memory(error) or images.shape[1] in accepted_channels(self.backbone)[:1]:
                raise
            raise ImageError(
                f"images of shape {tuple(images.shape)} do not fit: {error}"
            ) from error
        statistics = self.reference.relate(seen.statistics)
        return replace(seen, statistics=statistics, prototypes=self.prototypes)

    def _pooled(self, each: Observation, together: Grouping) -> Observation:
        """What was seen of images one by one as seen of groups, or of the kin that each image has in its group."""
        config, phi = self.config, self.config.generator
        known = (
            isinstance(phi, channels.Config)
            and "features" in phi.inputs
            # Where no layer tells how mixed a group is, and that was to count, none is found to be.
            and (self.likeness is not None or not phi.variation)
        )
        if config.kin is None or not known or not each.statistics:
            return each.pooled(together)
        mixed = None
        if self.likeness is not None:
            mixed = self._mixed(each.statistics, together)
            if mixed is None:
                return each.pooled(replace(together, alike=True))
        return each.pooled(kindred(each.statistics, together, config.kin, mixed))

    def _mixed(self, alone: dict[str, Statistics], together: Grouping) -> Tensor | None:
        """How mixed every group is; None where none is, so that nobody has to tell its images apart."""
        assert self.likeness is not None
        mixed = self.likeness.mixed(alone, together).to(together.sizes.dtype)
        return mixed if mixed.any() else None

    def _alike(self, seen: Observation) -> Observation:
        """What was seen, of groups none of which is mixed; only models that tell such groups from others care."""
        return seen if self.likeness is None else _with(seen, alike=True)

    def _questions(self, seen: Observation, grouping: Grouping, mirrored: bool) -> list[Question]:
        """The images under the parameters generated from what was seen, at each strength but the source's own.

        Then, where asked for, the mirror images.
        """
        source, target = self.slots.parameters_of(self.backbone), self._generate(seen)
        params = [
            target if part == 1 else between(source, target, torch.full_like(grouping.sizes, part))
            for part in self.config.strengths
            if part
        ]
        shown = [seen.images, seen.images.flip(-1)] if mirrored else [seen.images]
        return [Question(images, grouping, part) for images in shown for part in params]

    def _mean(self, seen: Observation, answers: list[Logits]) -> Logits:
        """The answers of generated models averaged with the source's, as often as it is among the strengths."""
        plain = [seen.logits for strength in self.config.strengths if not strength]
        return mixture(plain + answers, self.config.mean)

    def _generate(self, seen: Observation) -> Params:
        """θ_t from θ_s, z_t and g_t (Eq. 3, 6). Differentiable in φ, and only in φ."""
        source = self.slots.parameters_of(self.backbone)
        target: Params = self.generator(source, seen)
        if self.config.guard is None:
            return target
        return guarded(self.network, self.config.guard, source, target, seen)

    @torch.no_grad()
    def explain(self, images: Images, groups: Groups | None = None) -> change.Change:
        """How far each layer is moved for each group."""
        source = self.slots.parameters_of(self.backbone)
        return change.between(self.slots, source, self.generate(images, groups))

    @torch.no_grad()
    def calibrate(self, images: Images, groups: Groups | None = None) -> None:
        """Learns what source images look like: to layers without statistics of their own, and class by class.

        A few hundred images will do; labels are not needed.
        """
        check_images(images, self.backbone)
        together = grouping(groups, len(images), images)
        runs = [self._watch(part) for part in images.tensor_split(-(-len(images) // AT_ONCE))]
        each = joined([run.statistics for run in runs])
        self.reference.learn(pool_all(each, together))
        if self.prototypes is not None:
            classifier = self.backbone.get_submodule(self.slots.classifier)
            features = torch.cat([run.features for run in runs])
            self.prototypes.learn(features, torch.cat([run.logits for run in runs]), classifier)

    @torch.no_grad()
    def learn_looks(self, images: Images, looks: Groups) -> None:
        """Learns from source images how statistics vary within a look and between looks; one id of a look per image.

        As φ moves the layers now: what one shows depends on the moves of those before it, so it takes a few rounds.
        Labels are not needed. Does nothing unless `channels.Config.variation` asks for it.
        """
        if self.variation is None:
            return
        check_images(images, self.backbone)
        alike = grouping(looks, len(images), images)
        if len(alike.sizes) < 2 or int(alike.sizes.min()) < 2:
            raise DataError(
                f"looks: got {len(images)} images of {len(alike.sizes)} looks, {int(alike.sizes.min())} of one; give "
                "two looks or more, of two images or more each"
            )
        parts = images.tensor_split(-(-len(images) // AT_ONCE))
        if self.likeness is not None:
            self.likeness.learn(joined([self._watch(part).statistics for part in parts]), alike)
        self.variation.forget()
        for _ in range(ROUNDS):
            self.variation.learn(joined([self._moved(part).statistics for part in parts]), alike)

    def _watch(self, images: Images) -> Output:
        """What every image by itself shows the source model."""
        each = grouping(torch.arange(len(images)), len(images), images)
        return self.network.run(images, each, {}, watch=True)

    def _moved(self, images: Images) -> Output:
        """What every image by itself shows under the parameters that are generated for it."""
        seen = self.observe(images, torch.arange(len(images)))
        return self.network.run(seen.images, seen.grouping, self._generate(seen), watch=True)

    def train(self: Model, mode: bool = True) -> Model:
        """Sets φ's mode only: the backbone is not ours, and its twin is always in eval mode."""
        self.training = mode
        self.generator.train(mode)
        return self

    def _named(self, card: Card) -> Card:
        """The card, with one name per class and the backbone's class for people."""
        names = card.classes or tuple(str(number) for number in range(self.classes))
        if len(names) != self.classes:
            raise DataError(
                f"the classifier {self.slots.classifier!r} tells {self.classes} classes apart but "
                f"{len(names)} class names were given; give one name per class"
            )
        return replace(card, classes=names, backbone=card.backbone or type(self.backbone).__name__)

    def _save_pretrained(self, save_directory: Path) -> None:
        artefact.save(save_directory, self.state_dict(), self.config, self.card, self.companions)

    @classmethod
    @torch.inference_mode(False)  # answering takes gradients
    def from_pretrained(  # type: ignore[override]
        cls: type[Model], path: str | Path, *, backbone: nn.Module | None = None, **hub: Any
    ) -> Model:
        """The model of a folder, or of a Hugging Face repository. `backbone` only where it is your own class.

        Never unpickles. Your backbone is copied, so that loading does not write into it. In eval mode: φ's
        training noise would make every answer another one.
        """
        folder = artefact.locate(path, **hub)
        stored = artefact.read(folder, Config)
        model = cls(artefact.backbone_for(stored, backbone), stored.config, stored.card)
        artefact.fill(model, stored)
        model.companions = stored.companions
        return model.eval()


def _with(seen: Observation, **known: Any) -> Observation:
    """What was seen, of groups of which this is known."""
    return replace(seen, grouping=replace(seen.grouping, **known))

"""From source domains to a saved model: the stages of training, each resumable, in one call."""

import copy
import hashlib
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import quote

import torch
from lightning_fabric import Fabric
from torch import Tensor, nn

from generalizeformer import atomic
from generalizeformer.config import to_dict
from generalizeformer.core.card import Card
from generalizeformer.core.generalizeformer import GeneralizeFormer
from generalizeformer.data.domains import DomainDataset
from generalizeformer.data.splits import split_all
from generalizeformer.training._companions import Pace, check_companion, config_of, training_of
from generalizeformer.training._loop import Metrics, Report, Stage, fit, is_finished
from generalizeformer.training._recipe import Recipe, lasting
from generalizeformer.training._scoring import mean_accuracies, plain_accuracy
from generalizeformer.training._start import (
    calibrate,
    check_fits,
    check_learns,
    check_serves,
    fingerprint,
    near,
    origin,
    placed,
    plain,
)
from generalizeformer.training.erm import Config as ErmConfig
from generalizeformer.training.erm import Erm
from generalizeformer.training.joint import Config as JointConfig
from generalizeformer.training.joint import Joint
from generalizeformer.training.meta import Config as MetaConfig
from generalizeformer.training.meta import Meta, Pair, begin, blend


def train_recipe(
    build: Callable[[], nn.Module],
    sources: DomainDataset,
    recipe: Recipe,
    card: Card,
    folder: Path,
    fabric: Fabric,
    report: Report | None = None,
    backbones: Path | None = None,
    scored: bool = True,
    phi: bool = True,
) -> GeneralizeFormer:
    """The trained model, also saved as `folder`. `build` gives the backbone all stages start from.

    Run again after an interruption, it goes on where it was. The caller's random numbers are left as they were.
    `backbones`: a folder that several trainings share, so that a backbone of the same domains, settings and seed
    is trained once; of four domains there are ten such backbones for the sixteen that four targets need.
    `scored`: the card tells accuracies on source validation. Without `phi`, for who compares other methods on the
    backbone, φ is left untrained and nothing is saved but the states of stages.
    """
    recipe.check(sources, phi or recipe.episodes == "joint")
    devices = [fabric.device] if fabric.device.type == "cuda" else []
    # Gradients are needed whatever the caller does without.
    with torch.inference_mode(False), torch.enable_grad(), torch.random.fork_rng(devices):
        run = _Run(build, sources, recipe, card, folder, fabric, report, backbones, scored)
        return run.model() if phi or recipe.episodes == "joint" else run.without_phi()


class _Run:
    def __init__(
        self,
        build: Callable[[], nn.Module],
        sources: DomainDataset,
        recipe: Recipe,
        card: Card,
        folder: Path,
        fabric: Fabric,
        report: Report | None = None,
        backbones: Path | None = None,
        scored: bool = True,
    ) -> None:
        recipe = recipe.decided()
        self.sources, self.backbones, self.scored = sources, backbones, scored
        self.recipe, self.card, self.preprocessing = recipe, card, card.preprocessing
        self.folder, self.fabric, self.report = folder, fabric, report
        self.best: Metrics = {}  # of φ's training, where it was staged
        torch.manual_seed(recipe.seed)
        # Every stage starts from these weights and this head, and moves its copy to where it computes.
        self.start = copy.deepcopy(build()).cpu()
        check_fits(self.start, sources, self.preprocessing)
        if recipe.erm is not None:
            check_learns(self.start, sources, self.preprocessing)
        check_serves(self.start, recipe.model, sources, self.preprocessing)
        for name in recipe.also:
            check_companion(name, self.start, sources)
        self.origin = origin(self.start, sources, self.preprocessing) | {"seed": recipe.seed}
        self.data, self.held = self._divide(sources)
        folder.mkdir(parents=True, exist_ok=True)  # one that cannot be is told now

    def model(self) -> GeneralizeFormer:
        model = plain(self._joint() if self.recipe.episodes == "joint" else self._staged())
        self._accompany(model)
        model.card = self._card(model)
        if self.fabric.global_rank == 0:
            model.save_pretrained(self.folder)
        self.fabric.barrier()
        return model

    def without_phi(self) -> GeneralizeFormer:
        backbone = self._erm("erm", self.data.names, self.recipe.erm)
        model = GeneralizeFormer(backbone, self.recipe.model, self.card).to(self.fabric.device)
        self._accompany(plain(model))
        model.card = replace(model.card, sources=self.data.names, seed=self.recipe.seed)
        return model

    def _accompany(self, model: GeneralizeFormer) -> None:
        model.companions = {name: self._companion(name, model) for name in self.recipe.also}

    def _divide(self, sources: DomainDataset) -> tuple[DomainDataset, DomainDataset]:
        """The training and validation parts, on the GPU where they fit."""
        recipe = self.recipe
        train, held = split_all(
            sources, validation=recipe.validation, seed=recipe.seed, division=recipe.division
        )
        return near(train, self.fabric.device), near(held, self.fabric.device)

    def _staged(self) -> GeneralizeFormer:
        """ERM on all sources, and for φ's episodes on some or without looks; then φ on the pairs."""
        model = self._wrap(self._erm("erm", self.data.names, self.recipe.erm), self.data.names)
        pairs = [Pair(model, self.data[name], self.held[name]) for name in self.data.names]
        told = {"strangers": "of looks"} if self._looks_are_known() else {}
        stage = self._own_stage("meta", self.recipe.meta, self._alone() | told)
        # Where φ is there already, nobody needs the backbones that it was trained with.
        if not is_finished(stage) and (strange := self._strange_pairs(model)):
            pairs = blend(strange, pairs, self.recipe.stay)
        self.best = fit(Meta(pairs, self.preprocessing, self.recipe.meta, self.fabric), stage)
        return model

    def _joint(self) -> GeneralizeFormer:
        model = self._wrap(copy.deepcopy(self.start), self.data.names)
        assert self.recipe.erm is not None
        erm = replace(self.recipe.erm, steps=self.recipe.meta.steps)
        config = JointConfig(erm=erm, meta=self.recipe.meta, calibration=self.recipe.calibration)
        method = Joint(model, self.data, self.held, self.preprocessing, config, self.fabric)
        fit(method, self._own_stage("joint", self.recipe.meta, self._alone()))
        return model

    def _alone(self) -> dict[str, Any]:
        """The settings of φ's training: what else is trained beside it does not matter to it."""
        return lasting(to_dict(replace(self.recipe, also={})))

    def _companion(self, name: str, model: GeneralizeFormer) -> dict[str, Tensor]:
        """What a compared method learns from the sources, beside the finished backbone."""
        config = config_of(name, self.recipe.also[name])
        torch.manual_seed(self.recipe.seed)  # whatever was trained, or only loaded, before
        method = training_of(
            name, model, self.data, self.held, self.preprocessing, config, self.fabric
        )
        backbone = fingerprint(model.backbone.state_dict())
        mine = {name: to_dict(config), "backbone": backbone} | self.origin
        mine |= {"validation": self.recipe.validation, "division": self.recipe.division}
        fit(method, self._stage(name, config, mine, self.folder / "training"))
        return {key: value.detach().cpu() for key, value in method.weights().items()}

    def _erm(self, name: str, domains: tuple[str, ...], config: ErmConfig | None) -> nn.Module:
        backbone = copy.deepcopy(self.start)
        if config is None:
            return placed(backbone, self.fabric.device)
        train, held = self.data.only(domains), self.held.only(domains)
        method = Erm(backbone, train, held, self.preprocessing, config, self.fabric)
        # φ's settings do not matter here: whoever changes those keeps the backbones.
        mine = {"erm": to_dict(config), "validation": self.recipe.validation}
        mine |= {"division": self.recipe.division}
        if self.backbones is None:
            fit(method, self._own_stage(name, config, mine))
        else:
            stage = self._shared_stage(self.backbones, config, domains, mine)
            # Another process that needs it waits, and then finds it.
            with atomic.alone(stage.folder):
                fit(method, stage)
        return backbone

    def _shared_stage(
        self, folder: Path, config: ErmConfig, domains: tuple[str, ...], mine: dict[str, Any]
    ) -> Stage:
        """A stage that is named by what it learns from, so that other targets' trainings find it."""
        described = dict(zip(self.sources.names, self.origin["domains"], strict=True))
        mine = mine | self.origin | {"domains": [described[name] for name in domains]}
        digest = hashlib.sha256(json.dumps(mine, sort_keys=True).encode()).hexdigest()[:12]
        name = atomic.file_name(f"erm-{'+'.join(quote(domain, safe='') for domain in domains)}")
        return self._stage(name, config, mine, folder / digest)

    def _own_stage(
        self, name: str, config: ErmConfig | MetaConfig, settings: dict[str, Any]
    ) -> Stage:
        """A stage of this run. Its state is taken up again only with the same settings, data and start."""
        return self._stage(name, config, settings | self.origin, self.folder / "training")

    def _stage(self, name: str, config: Pace, settings: dict[str, Any], folder: Path) -> Stage:
        return Stage(
            name=name,
            steps=config.steps,
            seed=self.recipe.seed,
            folder=folder,
            fabric=self.fabric,
            every=config.every,
            settings=settings,
            report=self.report,
        )

    def _strange_pairs(self, model: GeneralizeFormer) -> list[Pair]:
        """Models of other backbones than the final one, to which the targets of φ's episodes are new."""
        recipe, names = self.recipe, self.data.names
        if recipe.episodes == "held-out":
            chosen = dict.fromkeys(recipe.held_out or names)
            return [self._strange_pair(name, model) for name in chosen]
        if not self._looks_are_known():
            return []
        assert recipe.erm is not None
        blind = self._erm("erm-without-looks", names, replace(recipe.erm, looks=None))
        stranger = self._wrap(blind, names, model)
        return [Pair(stranger, self.data[name], self.held[name]) for name in names]

    def _looks_are_known(self) -> bool:
        """Whether the final backbone learns from looks as φ does: to it they are no shift to learn from."""
        erm, meta = self.recipe.erm, self.recipe.meta
        seen = erm is not None and erm.looks is not None and erm.looks.strength > 0
        met = meta.looks is not None and meta.looks.strength > 0 and meta.look_share > 0
        return self.recipe.episodes == "looks" and seen and met

    def _strange_pair(self, name: str, model: GeneralizeFormer) -> Pair:
        """A model that never saw the domain, and the domain; drawn the more often, the more it gets wrong."""
        others = tuple(other for other in self.data.names if other != name)
        stage = atomic.file_name(f"erm-without-{quote(name, safe='')}")
        stranger = self._wrap(self._erm(stage, others, self.recipe.erm), others, model)
        held, device = self.held[name], self.fabric.device
        wrong = 100 - plain_accuracy(stranger, held, self.preprocessing, device)
        return Pair(stranger, self.data[name], held, max(wrong, 0.1), unseen=True)

    def _wrap(
        self, backbone: nn.Module, domains: tuple[str, ...], like: GeneralizeFormer | None = None
    ) -> GeneralizeFormer:
        """A model with a fresh φ, or with that of another one, that has seen these domains and no other."""
        torch.manual_seed(self.recipe.seed)
        model = GeneralizeFormer(backbone, self.recipe.model, self.card).to(self.fabric.device)
        if like is not None:
            model.generator = like.generator
        begin(model.generator, self.recipe.meta)  # looks are learned as φ moves layers
        known = self.data.only(domains)
        # Groups of an episode are of one look, and those that none can be mixed in need not be told apart.
        looks = like is None or model.likeness is None
        calibrate(model, known, self.preprocessing, self.recipe.calibration, looks)
        return model

    def _card(self, model: GeneralizeFormer) -> Card:
        unadapted, adapted = None, None
        if self.scored:
            held, device = self.held, self.fabric.device
            unadapted, adapted = mean_accuracies(model, held, self.preprocessing, device)
        return replace(
            model.card,
            sources=self.data.names,
            seed=self.recipe.seed,
            training=f"{self.recipe.episodes} episodes, {self.recipe.meta.steps} steps",
            source_accuracy=unadapted,
            adapted_accuracy=adapted,
            unseen_accuracy=self.best.get("unseen_plain"),
            unseen_adapted_accuracy=self.best.get("unseen_adapted"),
        )

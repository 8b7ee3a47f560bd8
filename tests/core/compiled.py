"""Compiles a grouped run and prints what came of it. Run by test_compile.py in a process of its own.

There, because the shape checks of the test run wrap every function, and the compiler cannot see through them.
"""

import json
import sys
from typing import Any

import torch

from core.nets import ARCHITECTURES, GENERATORS, architecture, digits, images, perturbed
from generalizeformer.core.generalizeformer import GeneralizeFormer
from generalizeformer.core.groups import grouping
from generalizeformer.core.kinship import kindred


def over_group_counts(name: str) -> dict[str, Any]:
    """Graphs compiled so far, and the largest difference to the eager run, after each number of groups."""
    graphs, differences, counts = [], [], []
    model, eager = perturbed(architecture(name)), perturbed(architecture(name))

    def backend(graph: torch.fx.GraphModule, inputs: list[Any]) -> Any:
        graphs.append(graph)
        return graph.forward

    torch._dynamo.reset()
    model.network.compile(backend=backend, fullgraph=True)
    for groups in (2, 5):
        # torch itself compiles small batches apart
        x = images(16 + groups, ARCHITECTURES[name][0], seed=groups)
        ids = torch.arange(len(x)) % groups
        together = grouping(ids, len(x), x)
        with torch.no_grad():
            params = eager.generate(x, ids)
            got = model.network.run(x, together, params, watch=True)
            expected = eager.network.run(x, together, params, watch=True)
        differences.append((got.logits - expected.logits).abs().max().item())
        for layer, seen in expected.statistics.items():
            differences.append((got.statistics[layer].mean - seen.mean).abs().max().item())
        counts.append(len(graphs))
    return {"graphs": counts, "difference": max(differences), "watched": len(got.statistics)}


def among_others(generator: str) -> dict[str, Any]:
    """The same where images of a group are told apart, by their looks or as kin, in groups of two sizes."""
    graphs, differences, counts = [], [], []
    model, eager = (perturbed(digits(), GENERATORS[generator]) for _ in range(2))

    def backend(graph: torch.fx.GraphModule, inputs: list[Any]) -> Any:
        graphs.append(graph)
        return graph.forward

    torch._dynamo.reset()
    model.network.compile(backend=backend, fullgraph=True)
    for count, groups in ((18, 3), (21, 2)):
        x, ids = images(count, seed=groups), torch.arange(count) % groups
        with torch.no_grad():
            each = eager.observe(x, torch.arange(count))
            together = grouping(ids, count, x)
            # Where looks are guessed, only as far as a group is mixed.
            mixed = None if generator == "settling" else torch.rand(groups, dtype=x.dtype)
            together = kindred(each.statistics, together, 0.3, mixed)
            source, seen = eager.slots.parameters_of(eager.backbone), each.pooled(together)
            params = eager.generator(source, seen)
            got, expected = (m.network.run(x, together, params).logits for m in (model, eager))
        differences.append((got - expected).abs().max().item())
        counts.append(len(graphs))
    return {"graphs": counts, "difference": max(differences)}


def gradients(model: GeneralizeFormer) -> dict[str, float]:
    """The largest differences between gradients of φ through a compiled run and through an eager one."""
    torch._dynamo.reset()
    x, ids = images(18), torch.arange(18) % 3
    together = grouping(ids, 18, x)
    own = list(model.generator.parameters())
    expected = torch.autograd.grad(model(x, ids).square().sum(), own)
    params = model.generate(x, ids)
    model.network.compile(backend="aot_eager", fullgraph=True)
    answers = model.network.run(x, together, params).logits
    pairs = zip(torch.autograd.grad(answers.square().sum(), own), expected, strict=True)
    both = [((a - b).abs().max().item(), b.abs().max().item()) for a, b in pairs]
    return {"difference": max(d for d, _ in both), "size": max(size for _, size in both)}


def main() -> None:
    torch.set_num_threads(1)
    runs = {name: over_group_counts(name) for name in sys.argv[1:]}
    apart = {name: among_others(name) for name in ("settling", "varying")}
    found = {"runs": runs, "apart": apart, "gradients": gradients(perturbed(digits()))}
    json.dump(found, sys.stdout)


if __name__ == "__main__":
    main()

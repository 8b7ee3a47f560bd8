"""Compiles a grouped run and prints what came of it. Run by test_compile.py in a process of its own.

There, because the shape checks of the test run wrap every function, and the compiler cannot see through them.
"""

import json
import sys
from typing import Any

import torch
from torch import nn

from core.nets import Net, digits, images, lived, perturbed
from generalizeformer.core.generalizeformer import GeneralizeFormer
from generalizeformer.core.groups import grouping


def layer_norm_net() -> nn.Module:
    torch.manual_seed(0)
    return lived(Net(nn.LayerNorm(8), tokens=True))


BACKBONES = {"BatchNorm": digits, "LayerNorm": layer_norm_net}


def over_group_counts(model: GeneralizeFormer, watch: bool) -> dict[str, Any]:
    """Graphs compiled so far, and the largest difference to the eager run, after each number of groups."""
    graphs, differences, counts = [], [], []

    def backend(graph: torch.fx.GraphModule, inputs: list[Any]) -> Any:
        graphs.append(graph)
        return graph.forward

    torch._dynamo.reset()
    compiled = torch.compile(model.network.traced, backend=backend, fullgraph=True, dynamic=True)
    for groups in (2, 5, 3, 7):
        x = images(16 + groups, seed=groups)  # torch itself compiles small batches apart
        ids = torch.arange(len(x)) % groups
        together = grouping(ids, len(x), x)
        with torch.no_grad():
            params = model.generate(x, ids)
            got = compiled(x, together.ids, together.sizes, params, watch)
            expected = model.network.run(x, together, params, watch=watch)
        differences.append((got.logits - expected.logits).abs().max().item())
        for name, seen in expected.statistics.items():
            differences.append((got.statistics[name].mean - seen.mean).abs().max().item())
        counts.append(len(graphs))
    return {"graphs": counts, "difference": max(differences), "watched": len(got.statistics)}


def gradients(model: GeneralizeFormer) -> dict[str, float]:
    """The largest differences between gradients of φ through a compiled run and through an eager one."""
    torch._dynamo.reset()
    run = torch.compile(model.network.traced, backend="aot_eager", fullgraph=True, dynamic=True)
    x, ids = images(18), torch.arange(18) % 3
    together = grouping(ids, 18, x)
    answers = run(x, together.ids, together.sizes, model.generate(x, ids), False).logits
    own = list(model.generator.parameters())
    pairs = zip(
        torch.autograd.grad(answers.square().sum(), own),
        torch.autograd.grad(model(x, ids).square().sum(), own),
        strict=True,
    )
    both = [((a - b).abs().max().item(), b.abs().max().item()) for a, b in pairs]
    return {"difference": max(d for d, _ in both), "size": max(size for _, size in both)}


def main() -> None:
    torch.set_num_threads(1)
    runs = {
        f"{name} {watch}": over_group_counts(perturbed(build()), watch)
        for name, build in BACKBONES.items()
        for watch in (False, True)
    }
    json.dump({"runs": runs, "gradients": gradients(perturbed(digits()))}, sys.stdout)


if __name__ == "__main__":
    main()

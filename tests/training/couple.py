"""Trains the toy in two processes; each leaves its weights as FOLDER/rank-N.pt. python couple.py FOLDER EPISODES"""

import sys
from pathlib import Path

import torch
from lightning_fabric import Fabric

from generalizeformer.training._run import train_recipe

sys.path.insert(0, str(Path(__file__).parents[1]))

from training.toys import CARD, network, recipe, sources

if __name__ == "__main__":
    torch.set_num_threads(1)
    fabric = Fabric(accelerator="cpu", devices=2)
    fabric.launch()
    folder, episodes = Path(sys.argv[1]), sys.argv[2]
    model = train_recipe(network, sources(), recipe(episodes=episodes), CARD, folder, fabric)
    torch.save(model.state_dict(), folder / f"rank-{fabric.global_rank}.pt")

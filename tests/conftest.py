import torch

from generalizeformer import memory

torch.set_num_threads(1)  # operations this small wait longer for a second thread than they run
memory.keep()  # as in every process of the command line

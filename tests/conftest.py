import torch

torch.set_num_threads(1)  # operations this small wait longer for a second thread than they run

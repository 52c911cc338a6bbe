"""Puts this folder on the import path, so that tests can say `from helpers import ...`."""

import torch

torch.set_num_threads(1)  # sums in one order, and no fight with the other test workers for cores

"""Train a small network: `loop_plain.py` in one process, `loop_coded.py` with four workers."""

import torch
from torch import nn
from torch.utils.data import TensorDataset

from seqgc import gradients, workers

torch.manual_seed(0)
inputs = torch.rand(512, 20, dtype=torch.float64)
data = TensorDataset(inputs, inputs.sum(1, keepdim=True).sin())
model = nn.Sequential(nn.Linear(20, 32), nn.Tanh(), nn.Linear(32, 1)).double()
loss = nn.MSELoss()
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
g = gradients(model, loss, data, workers=workers.local(4), scheme="gc-rep:s=1")
for _ in range(20):
    indices = torch.randint(len(data), (64,))
    optimizer.zero_grad()
    value = g.backward(indices)
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
g.close()
print(f"loss {value.item():.6f}")

"""A module for Lightning's Trainer whose gradients workers compute (``pip install lightning``)."""

import lightning
import torch

from seqgc.training import Gradients


class CodedModule(lightning.LightningModule):
    """A network that trains with `gradients`. Its data loader must yield indices of points."""

    def __init__(self, net: torch.nn.Module, gradients: Gradients) -> None:
        super().__init__()
        self.net, self.gradients = net, gradients

    def training_step(self, indices: torch.Tensor, _: int) -> torch.Tensor:
        self.indices = indices
        return torch.ones((), requires_grad=True)  # Lightning scales it, to accumulate gradients

    def backward(self, loss: torch.Tensor) -> None:
        self.value = self.gradients.backward(self.indices, scale=loss.item())

    def on_after_backward(self) -> None:
        self.log("loss", self.value)

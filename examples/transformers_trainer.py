"""Hugging Face's Trainer with gradients from workers (``pip install transformers accelerate``)."""

import torch
import transformers

from seqgc.training import Gradients


class Logits(torch.nn.Sequential):
    """A model whose input is one dictionary of arguments, as workers call it."""

    def forward(self, x: dict[str, torch.Tensor]) -> torch.Tensor:
        return self[0](**x).logits


class CodedTrainer(transformers.Trainer):
    """A Trainer that gets its gradients from workers. Each input is the ``index`` of a point."""

    gradients: Gradients

    def training_step(self, model, inputs, num_items_in_batch=None):  # noqa: ARG002
        model.train()
        scale = 1 / self.current_gradient_accumulation_steps
        return self.gradients.backward(inputs["index"], scale=scale) * scale

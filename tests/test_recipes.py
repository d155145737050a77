"""The recipes for other trainers give the weights of these trainers alone."""

from __future__ import annotations

import copy
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from seqgc import gradients, workers

EXAMPLES = Path(__file__).resolve().parents[1] / "examples"


@pytest.mark.parametrize("name", ["lightning_module.py", "transformers_trainer.py"])
def test_a_recipe_has_at_most_25_lines(name: str) -> None:
    assert len((EXAMPLES / name).read_text(encoding="utf-8").splitlines()) <= 25


def require_same_weights(one: nn.Module, other: nn.Module, before: nn.Module) -> None:
    for p, q, old in zip(one.parameters(), other.parameters(), before.parameters(), strict=True):
        torch.testing.assert_close(p, q, rtol=1e-12, atol=1e-12)
        assert not p.requires_grad or not torch.equal(p, old)


@pytest.mark.filterwarnings("ignore:.*LeafSpec:FutureWarning")
def test_lightning_accumulates_clips_and_steps_as_without_workers(tmp_path: Path) -> None:
    lightning = pytest.importorskip("lightning")
    from examples.lightning_module import CodedModule

    torch.manual_seed(0)
    x = torch.randn(48, 5, dtype=torch.float64)
    data, loss = TensorDataset(x, x.sin().sum(1, keepdim=True)), nn.MSELoss()
    before = nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 1)).double()
    plain, coded = copy.deepcopy(before), copy.deepcopy(before)

    def adam(module: Any) -> torch.optim.Optimizer:
        return torch.optim.Adam(module.net.parameters(), lr=0.05)

    class Plain(lightning.LightningModule):
        configure_optimizers = adam

        def __init__(self, net: nn.Module) -> None:
            super().__init__()
            self.net = net

        def training_step(self, indices: torch.Tensor, _: int) -> torch.Tensor:
            inputs, targets = data[indices]
            value = loss(self.net(inputs), targets)
            self.log("loss", value)
            return value

    class Coded(CodedModule):
        configure_optimizers = adam

    def fit(module: Any) -> float:
        trainer = lightning.Trainer(
            max_epochs=2,
            accumulate_grad_batches=2,
            gradient_clip_val=0.5,
            accelerator="cpu",
            default_root_dir=tmp_path,
            logger=False,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
        )
        trainer.fit(module, DataLoader(range(48), batch_size=8))
        return float(trainer.callback_metrics["loss"])

    with workers.local(2) as w, gradients(coded, loss, data, workers=w, scheme="gc-rep:s=1") as g:
        assert math.isclose(fit(Coded(coded, g)), fit(Plain(plain)), rel_tol=1e-12)
        assert g.counts.rounds == 12
    require_same_weights(plain, coded, before)


def test_transformers_accumulates_and_steps_as_without_workers(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    pytest.importorskip("accelerate")
    from examples.transformers_trainer import CodedTrainer, Logits

    config = transformers.BertConfig(
        vocab_size=20,
        hidden_size=8,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=16,
        max_position_embeddings=6,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
        num_labels=3,
    )
    torch.manual_seed(0)
    before = transformers.BertForSequenceClassification(config).double()
    plain, coded = copy.deepcopy(before), copy.deepcopy(before)
    tokens, labels = torch.randint(20, (32, 6)), torch.randint(3, (32,))
    data = [({"input_ids": row}, label) for row, label in zip(tokens, labels, strict=True)]
    options = transformers.TrainingArguments(
        output_dir=str(tmp_path),
        per_device_train_batch_size=4,
        gradient_accumulation_steps=2,
        num_train_epochs=1,
        learning_rate=0.01,
        remove_unused_columns=False,
        disable_tqdm=True,
        report_to="none",
        save_strategy="no",
        use_cpu=True,
    )
    rows = [{"input_ids": row, "labels": label} for row, label in zip(tokens, labels, strict=True)]
    reference = transformers.Trainer(plain, options, train_dataset=rows)
    reference.model_accepts_loss_kwargs = False  # BERT ignores them, and its mean is per batch
    one = reference.train()
    loss, points = nn.CrossEntropyLoss(), [{"index": i} for i in range(32)]
    net = Logits(coded)
    with workers.local(2) as w, gradients(net, loss, data, workers=w, scheme="gc-rep:s=1") as g:
        trainer = CodedTrainer(coded, options, train_dataset=points)
        trainer.gradients = g
        other = trainer.train()
        assert g.counts.rounds == 8
    assert math.isclose(one.training_loss, other.training_loss, rel_tol=1e-9)
    require_same_weights(plain, coded, before)

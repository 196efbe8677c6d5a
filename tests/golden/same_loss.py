#!/usr/bin/env python3
"""Loads a checkpoint that weir-train saved into transformers, strictly, and compares log-probabilities:
the mean loss of evaluation sequences there with the eval_loss that weir-train logged.

  pip install torch transformers
  weir-train ... --dtype fp32 --data train.bin --eval-data eval.bin --eval-batches 4 --out OUT --log LOG
  tests/golden/same_loss.py OUT/step-N LOG eval.bin SEQ_LEN SEQUENCES

SEQUENCES is --eval-batches times --batch, or all that eval.bin holds. Vocabularies up to 65536.
"""
import array
import json
import sys

import torch
from transformers import LlamaForCausalLM

checkpoint, log, data, length, count = *sys.argv[1:4], int(sys.argv[4]), int(sys.argv[5])
model, info = LlamaForCausalLM.from_pretrained(checkpoint, dtype=torch.float32, output_loading_info=True)
wrong = {k: v for k, v in info.items() if v and k != "error_msgs"}
tokens = array.array("H", open(data, "rb").read())
losses = []
with torch.no_grad():
    for i in range(count):
        piece = torch.tensor(tokens[i * length : i * length + length + 1].tolist())
        logits = model(piece[None, :-1]).logits[0]
        losses.append(torch.nn.functional.cross_entropy(logits.double(), piece[1:]).item())
there = sum(losses) / len(losses)
here = [json.loads(line) for line in open(log)][-1]["eval_loss"]
print(f"not loaded as it is: {wrong or 'nothing'}\ntransformers {there:.9f}, weir {here:.9f}, relative {abs(there - here) / there:.1e}")
sys.exit(bool(wrong) or abs(there - here) > 1e-5 * there)

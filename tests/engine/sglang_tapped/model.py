# SPDX-License-Identifier: Apache-2.0
"""A model of SGLang's whose next token follows from a token and its position, and which taps (token, position) of each row on the device."""
import numpy as np
import torch
from sglang.srt.layers.logits_processor import LogitsProcessorOutput

import model_runners


class TappedForCausalLM(torch.nn.Module):
    shared_experts_config = None

    def __init__(self, config, quant_config=None, prefix=""):
        super().__init__()
        self.config, self.device = config, model_runners.Device()

    def load_weights(self, weights):
        for _ in weights:
            raise ValueError("this model has no weights")

    @torch.no_grad()
    def forward(self, input_ids, positions, forward_batch, input_embeds=None, **more):
        rows = torch.stack([input_ids.float(), positions.float()], 1)
        for layer in range(2):
            self.tap("resid_pre", rows, layer)
        last = torch.arange(len(rows)) if forward_batch.forward_mode.is_decode() else torch.cumsum(forward_batch.extend_seq_lens, 0) - 1
        self.tap("final_logits", rows[last])
        after = torch.where(positions % 5 == 0, input_ids * 3 + positions, input_ids + 1)[last] % self.config.vocab_size
        return LogitsProcessorOutput(next_token_logits=torch.nn.functional.one_hot(after.long(), self.config.vocab_size).float())

    def tap(self, name, rows, *layer):
        self.device.tap(name, np.pad(rows.numpy(), ((0, 0), (0, model_runners.WIDTH - 2))), *layer)


EntryClass = TappedForCausalLM

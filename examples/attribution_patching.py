#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Which residuals carry the answer? Gradient times difference for all layers and positions, from two forwards and one backward, beside the true patches.

    dmi-run --attach resid_post,gradients --write resid_post --out RUN -- python attribution_patching.py MODEL CLEAN CORRUPT

MODEL is a folder of Hugging Face's, or a GGUF file; CLEAN and CORRUPT are prompts of as many tokens. The answer is CLEAN's next token, and what is measured is how
far its logit lies ahead of that of CORRUPT's. A patch puts CLEAN's resid_post of one layer and position into CORRUPT, by dmi.edit().
"""
import argparse
import pathlib
import tempfile

import numpy

import dmi
import dmi.huggingface
import pretrained


def forward(model, name, ids):
    """The last token's logits; the request is called @name."""
    import torch
    ids = torch.tensor([ids], device=model.device)
    with dmi.huggingface.batch(torch.ones_like(ids), [name]):
        return model(ids, use_cache=False).logits[0, -1]


def estimated(model, clean, corrupt):
    """(gradient times difference [layer, position], {layer: clean - corrupt}, the answers, how far the first lies ahead of the second in @corrupt)"""
    import torch
    with dmi.collect(sites=["resid_post", "resid_post.grad"]) as got:
        with torch.no_grad():
            right = int(forward(model, "clean", clean).argmax())
        logits = forward(model, "corrupt", corrupt)
        wrong = int(logits.argmax())
        ahead = logits[right] - logits[wrong]
        ahead.backward()
    before, after, gradient = got["corrupt"]["resid_post"], got["clean"]["resid_post"], got["corrupt"]["resid_post.grad"]
    apart = {layer: after[layer] - before[layer] for layer in gradient}
    return numpy.stack([(gradient[layer] * apart[layer]).sum(-1).numpy() for layer in sorted(apart)]), apart, (right, wrong), ahead.item()


def patched(model, corrupt, apart, answers, before):
    """By how much each patch moves the answer [layer, position]: a forward for each."""
    import torch
    right, wrong = answers
    found = numpy.zeros((len(apart), len(corrupt)), numpy.float32)
    with tempfile.TemporaryDirectory() as folder, torch.no_grad():
        for layer, rows in sorted(apart.items()):
            for position in range(len(corrupt)):
                file = pathlib.Path(folder, "difference.npy")
                numpy.save(file, rows[position].numpy())
                with dmi.edit(file, layers=layer, sites="resid_post", tokens=f"{position}:{position + 1}"):
                    logits = forward(model, f"patched-{layer}-{position}", corrupt)
                found[layer, position] = float(logits[right] - logits[wrong]) - before
    return found


def rank_correlation(a, b):
    """Spearman's."""
    ranks = [numpy.argsort(numpy.argsort(x.ravel())) for x in (a, b)]
    return float(numpy.corrcoef(*ranks)[0, 1])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("model", "clean", "corrupt"):
        parser.add_argument(name)
    options = parser.parse_args()
    tokenizer, model = pretrained.load(options.model)
    clean, corrupt = (tokenizer(text, add_special_tokens=False)["input_ids"] for text in (options.clean, options.corrupt))
    if len(clean) != len(corrupt):
        parser.error(f"the prompts have {len(clean)} and {len(corrupt)} tokens: as many are expected")
    estimate, apart, answers, before = estimated(model, clean, corrupt)
    truth = patched(model, corrupt, apart, answers, before)
    print(f"answers: {tokenizer.decode([answers[0]])!r}, {tokenizer.decode([answers[1]])!r}")
    for position, token in enumerate(corrupt):
        layer = int(abs(truth[:, position]).argmax())
        print(f"{position:3} {tokenizer.decode([token])!r:14} layer {layer}: gradient times difference {estimate[layer, position]:+.3f}, patch {truth[layer, position]:+.3f}")
    print(f"rank correlation over {truth.size} patches: {rank_correlation(estimate, truth):.3f}")


if __name__ == "__main__":
    main()

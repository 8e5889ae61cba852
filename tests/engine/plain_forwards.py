# SPDX-License-Identifier: Apache-2.0
"""What generate_client.py does besides: generate() of models in wrappers, and forwards that generate() has no part in, named by batch().

Functions of its process: each is given its module, the device, and what the run must hold.
"""
import types

import torch
import transformers

import attach_models as models
import dmi.huggingface
import dmi.torch
from attach_client import check
from attach_kinds import Passing, Plain


def wrapped(client, device, expected):
    """attach() finds the model in what holds it; a wrapper may put a generate() of its own into its model."""
    ids = torch.tensor([client.PROMPTS[1]])
    for name, hold in (("passing", Passing), ("plain-object", lambda model: Plain(inner=[model], generate=model.generate)), ("own-generate", own_generate)):
        model = client.small("llama")
        thing = hold(model)
        said = client.said_by(lambda: check(dmi.huggingface.attach(thing) is True, f"{name}: attached"))
        with dmi.huggingface.requests(name):
            out = thing.generate(input_ids=ids, max_new_tokens=3)
        dmi.huggingface.detach(thing)
        check(not said and model not in dmi.huggingface._attached, f"{name}: and detached", said)
        expected.add(model, name, out[0].tolist(), 7, reason="length", logits=True)
    try:
        dmi.huggingface.attach(Plain(tokenizer=None, model=torch.nn.Linear(1, 1)))
        check(False, "a wrapper of nothing that generates is an error")
    except ValueError as error:
        check("holds nothing that has" in str(error), "a wrapper of nothing that generates is an error", error)
    learned(client, device)
    other_loop(client, device)


def own_generate(model):
    """As a library that exchanges an instance's method, and calls the one that it found."""
    model.found = model.generate
    model.generate = types.MethodType(lambda self, **options: self.found(**options), model)
    return model


def other_loop(client, device):
    """A generate() that does without transformers' loop: it announces nothing, and says so."""
    model, device.on = client.small("llama"), False
    model.generate = lambda **options: model(options["input_ids"]).logits
    dmi.huggingface.attach(model)
    said = client.said_by(lambda: model.generate(input_ids=torch.tensor([client.PROMPTS[1]])))
    check(len(said) == 1 and "LlamaForCausalLM prepares no forward as transformers does" in said[0], "a loop of another's is named", said)
    device.on = True


def learned(client, device):
    """As PEFT's learned prompts: tokens that no request has."""
    model, device.on = client.small("llama"), False
    dmi.huggingface.attach(model)
    prepare = model.prepare_inputs_for_generation

    def longer(input_ids, **given):
        inputs = prepare(input_ids, **given)
        inputs.pop("cache_position", None)
        embeds = model.get_input_embeddings()(input_ids)
        return inputs | {"input_ids": None, "inputs_embeds": torch.cat([embeds[:, :1] * 0, embeds], 1), "attention_mask": None, "position_ids": None}
    model.prepare_inputs_for_generation = longer
    said = client.said_by(lambda: model.generate(torch.tensor([client.PROMPTS[1]]), max_new_tokens=1))
    check(len(said) == 1 and "a learned prompt" in said[0], "learned prompts are refused by name", said)
    device.on = True


def tapped(client):
    model = models.model_of("llama")
    dmi.torch.attach(model, "resid_pre,k_rot", sink=lambda *given: client._sinks[-1](*given))
    return model


MASKS = ([[0, 0, 1, 1, 1], [1, 1, 1, 1, 1]], [[1, 1, 1, 0, 0], [1, 0, 1, 0, 1]])  # before, and after and within


def plain(client, device, expected):
    model, ids = tapped(client), torch.arange(10).reshape(2, 5) + 11
    for kind, mask in enumerate(MASKS):
        mask = torch.tensor(mask)
        given = {"input_ids": ids, "attention_mask": mask, "position_ids": (mask.cumsum(1) - 1).clamp(0), "use_cache": False}
        names = [f"batch{kind}-{i}" for i in range(2)]
        with dmi.huggingface.batch((mask, mask.bool().numpy())[kind], names, tags=[{"capture": "yes"}, None]):
            model(**given)
        for name, row, of in zip(names, ids, mask):
            tokens = row[of.bool()].tolist()
            expected.add(model, name, tokens + [0], len(tokens), reason="unknown")
    loop(model, device, expected)
    called(model, expected)
    refused(client, model, device)


def loop(model, device, expected):
    """Prefill and decode of a program's own: more forwards of the same requests."""
    ids, cache = torch.tensor([[0, 5, 6], [7, 8, 9]]), transformers.DynamicCache(config=model.config)
    mask, after = [[0, 1, 1], [1, 1, 1]], [[20, 21], [30, 31]]
    for step in range(3):
        past = step + 2 if step else 0
        columns = torch.tensor(mask)
        with dmi.huggingface.batch(mask, ["loop-0", "loop-1"], past=past, ends=step == 2):
            model(input_ids=ids, attention_mask=columns, position_ids=(columns.cumsum(1) - 1).clamp(0)[:, past:], past_key_values=cache)
        ids, mask = torch.tensor([[row[step]] for row in after]) if step < 2 else ids, [[*row, 1] for row in mask]
    expected.add(model, "loop-0", [5, 6, 20, 21, 0], 2, reason="unknown")
    expected.add(model, "loop-1", [7, 8, 9, 30, 31, 0], 3, reason="unknown")


def called(model, expected):
    """As a function it holds until the next one."""
    for name in ("called-0", "called-1"):
        batch = dmi.huggingface.batch([[1, 1, 1]], [name])
        model(torch.tensor([[3, 4, 5]]), use_cache=False)
        expected.add(model, name, [3, 4, 5, 0], 3, reason="unknown")
    batch.finish()


def refused(client, model, device):
    device.on = False
    for mask, ids, more in (([[1, 1]], ["a", "b"], {}), ([1, 1], ["a"], {}), ([[1, 1], [1]], ["a", "b"], {}), ([[1, 1]], ["a"], {"past": 2}),
                            ([[1, 1]], ["a"], {"tags": [{}, {}]})):
        try:
            dmi.huggingface.batch(mask, ids, **more)
            check(False, f"{mask}, {ids}, {more} is an error")
        except ValueError as error:
            check(f"ids: {len(ids)}" in str(error), f"{mask}, {ids}, {more} is an error", error)

    def nothing():
        with dmi.huggingface.requests("nobody"):
            model(torch.tensor([[3, 4, 5]]))
    said = client.said_by(nothing)
    check(len(said) == 1 and "batch(mask, ids)" in said[0], "requests() without a generate() says so", said)
    device.on = True

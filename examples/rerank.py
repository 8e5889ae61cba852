#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Which document answers a question? What the question's tokens attend to, less what a question without content does (CoRe).

    dmi-run --attach q_rot,k_rot,v,z --out RUN -- python rerank.py capture MODEL PASSAGES
    python rerank.py show RUN PASSAGES

MODEL is a folder of Hugging Face's, or a GGUF file; PASSAGES a folder for the places of documents and questions. Six documents and six questions, scored by all heads.
"""
import argparse
import json
import pathlib
import subprocess

import pretrained

DOCUMENTS = ["The telephone was patented by Alexander Graham Bell in 1876.", "The light bulb got practical use through Thomas Edison in 1879.",
             "The Eiffel Tower in Paris was completed in 1889.", "The Great Wall of China is more than twenty thousand kilometres long.",
             "Penicillin was discovered by Alexander Fleming in 1928.", "The Amazon is the largest river by the water that it carries."]
QUESTIONS = ["Who patented the telephone?", "Who made the light bulb practical?", "When was the Eiffel Tower completed?", "How long is the Great Wall of China?",
             "Who discovered penicillin?", "Which river carries the most water?"]


def prompt_of(tokenizer, question):
    """(ids, spans of the documents, span of the question), whose last positions are included."""
    ids, spans = [], []
    for number, document in enumerate(DOCUMENTS):
        ids += tokenizer(f"[{number + 1}] ", add_special_tokens=False)["input_ids"]
        part = tokenizer(document, add_special_tokens=False)["input_ids"]
        spans.append([len(ids), len(ids) + len(part) - 1])
        ids += part + tokenizer("\n", add_special_tokens=False)["input_ids"]
    ids += tokenizer("Which document answers this? Query: ", add_special_tokens=False)["input_ids"]
    part = tokenizer(question, add_special_tokens=False)["input_ids"]
    return ids + part, spans, [len(ids), len(ids) + len(part) - 1]


def capture(options):
    """A forward over each prompt; dmi-run attaches the model."""
    tokenizer, model = pretrained.load(options.model)
    folder = pathlib.Path(options.passages)
    folder.mkdir(exist_ok=True)
    null = prompt_of(tokenizer, "N/A")[2]
    for number, question in enumerate(["N/A", *QUESTIONS[:options.questions]]):
        ids, spans, asked = prompt_of(tokenizer, question)
        name = f"q{number - 1}" if number else "null"
        (folder / f"{name}.json").write_text(json.dumps({"documents": spans, "query": asked, "null": null}))
        pretrained.prefill(model, number, name, ids)


def show(options):
    places = sorted(path for path in pathlib.Path(options.passages).glob("q*.json"))
    right = 0
    for number, path in enumerate(places):
        said = subprocess.run(["dmi-analyze", "rerank", options.run, "--query", path.stem, "--null", "null", "--passages", path, "--json"],
                              stdout=subprocess.PIPE, text=True, check=True).stdout
        first = json.loads(said)["documents"][0]
        right += first["number"] == number
        print(f"{QUESTIONS[number]:40} {'' if first['number'] == number else 'WRONG: '}{DOCUMENTS[first['number']]}")
    print(f"{right} of {len(places)} questions have their document first")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(required=True)
    first = commands.add_parser("capture")
    first.add_argument("model")
    first.add_argument("passages")
    first.add_argument("--questions", type=int, default=len(QUESTIONS))
    first.set_defaults(action=capture)
    second = commands.add_parser("show")
    second.add_argument("run")
    second.add_argument("passages")
    second.set_defaults(action=show)
    options = parser.parse_args()
    options.action(options)


if __name__ == "__main__":
    main()

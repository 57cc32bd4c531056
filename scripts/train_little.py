"""Trains the little model that the tests ask: under 2 MB, on little stories that this script itself makes up.

    python scripts/train_little.py [--steps 1480]

Writes tests/little. The stories come from a small grammar below, so nothing but this file is needed.
"""

import argparse
import random
from pathlib import Path

import numpy as np
import torch

from pmlm.corpus.framing import frame, row_batch
from pmlm.lm import LM
from pmlm.model import ModelConfig, build_model
from pmlm.objectives import APLM, U_PMLM, Member, Mixture, mixture_loss
from pmlm.runtime import RowRandom, generator
from pmlm.tokenizer import Tokenizer, train_tokenizer
from pmlm.words import count_words

NAMES = [
    "Tom",
    "Jerry",
    "Anna",
    "Ben",
    "Clara",
    "Max",
    "Lily",
    "Sam",
    "Mia",
    "Leo",
    "Rosa",
    "Tim",
    "Nora",
    "Jack",
    "Ella",
    "Finn",
    "Zoe",
    "Hugo",
    "Ada",
    "Paul",
]
ANIMALS = [
    "cat",
    "mouse",
    "dog",
    "fox",
    "bear",
    "rabbit",
    "bird",
    "duck",
    "pig",
    "horse",
    "cow",
    "goat",
    "frog",
    "owl",
    "hen",
    "lion",
    "wolf",
    "squirrel",
]
TRAITS = [
    "little",
    "big",
    "kind",
    "brave",
    "lazy",
    "happy",
    "clever",
    "quiet",
    "old",
    "young",
    "hungry",
    "funny",
    "shy",
    "proud",
    "gentle",
    "quick",
    "brown",
]
PLACES = [
    "the park",
    "the garden",
    "the forest",
    "the river",
    "the farm",
    "the kitchen",
    "the school",
    "the hill",
    "the lake",
    "the village",
    "the barn",
    "the beach",
]
THINGS = [
    "ball",
    "kite",
    "hat",
    "boat",
    "cake",
    "book",
    "box",
    "lamp",
    "drum",
    "key",
    "shell",
    "stone",
    "flower",
    "apple",
    "bell",
    "blanket",
]
FOODS = [
    "cheese",
    "bread",
    "soup",
    "an apple",
    "a cake",
    "honey",
    "some berries",
    "a big fish",
    "a warm pie",
    "carrots",
]
WEATHER = "The sun was shining .;It was raining .;The wind was cold .;Snow was falling .;The sky was blue .".replace(
    " .", "."
).split(";")
FEELINGS = ["happy", "sad", "tired", "excited", "scared", "proud", "surprised", "glad", "hungry", "curious"]
MOVES = ["ran", "walked", "jumped", "hurried", "went", "climbed", "sailed", "crept"]
VERBS = ["found", "lost", "dropped", "painted", "carried", "hid", "fixed", "saw"]


def make_story(rng: random.Random) -> str:
    pick = rng.choice
    one, two = rng.sample(NAMES, 2)
    animal, other = pick(ANIMALS), pick(ANIMALS)
    thing, place, food, trait = pick(THINGS), pick(PLACES), pick(FOODS), pick(TRAITS)
    beginnings = [
        f"{one} is a {animal} and {two} is a {other}.",
        f"Once upon a time there was a {trait} {animal} named {one}.",
        f"One day {one} {pick(MOVES)} to {place}.",
        f"{one} and {two} lived near {place}.",
        f"There was a {trait} {animal} who loved {food}. Its name was {one}.",
    ]
    middles = [
        f"{one} {pick(VERBS)} a {pick(TRAITS)} {thing} near {place}.",
        f"{two} wanted to play with the {thing}, but {one} was {pick(FEELINGS)}.",
        f'"Can I have the {thing}?" asked {two}. "Yes, you can," said {one}.',
        f'"Look at my {thing}!" said {one}.',
        f"They {pick(MOVES)} to {place} and ate {food}.",
        f"{two} was very {pick(FEELINGS)}, so {one} gave {two} {food}.",
        f"The {trait} {animal} {pick(MOVES)} over the {pick(TRAITS)} {pick(ANIMALS)}.",
        pick(WEATHER),
        f"{one} looked for the {thing} in {pick(PLACES)}, but it was not there.",
        f"Then a {pick(TRAITS)} {pick(ANIMALS)} came and helped them.",
        f"{two} could not find {food}, and {one} felt {pick(FEELINGS)}.",
    ]
    endings = [
        f"{one} and {two} become good friends in the end.",
        f"In the end they were all {pick(FEELINGS)}.",
        f"They played with the {thing} until it was dark.",
        f"{one} went home and slept well.",
        f'"Thank you, {one}," said {two}.',
    ]
    return " ".join([pick(beginnings), *rng.sample(middles, rng.randint(1, 5)), pick(endings)])


def story_batch(stories: list[list[int]], tokenizer: Tokenizer, rng: random.Random, rows: int, length: int):
    picked = [frame(rng.choice(stories)[: length - 2], tokenizer) for _ in range(rows)]
    return row_batch(picked, tokenizer, length)


def train(num_steps: int, seed: int) -> LM:
    rng = random.Random(seed)
    texts = [make_story(rng) for _ in range(20_000)]
    tokenizer = train_tokenizer(texts, vocab_size=768)
    stories = tokenizer.encode_many(texts)
    mixture = Mixture(
        members=(Member(objective=APLM, start=0.8, end=0.4), Member(objective=U_PMLM, start=0.2, end=0.6))
    )
    config = ModelConfig(
        vocab_size=tokenizer.vocab_size, num_layers=4, width=128, num_heads=4, ff_width=384, max_length=128,
        positions="rotary", norm="pre", dropout=0.0, norm_eps=1e-5,
        mask_id=tokenizer.mask_id, forbidden_ids=tokenizer.forbidden_ids,
        visibilities=("order-causal", "bidirectional"),
    )  # fmt: skip
    model = build_model(config, generator(seed, "init"))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1.0, betas=(0.9, 0.98), weight_decay=0.01)
    tokens = 0
    for step in range(num_steps):
        progress = step / num_steps
        batch = story_batch(stories, tokenizer, rng, rows=32, length=96)
        loss = mixture_loss(model, batch, mixture, progress, RowRandom.whole(seed, step, 32), config)
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for group in optimizer.param_groups:
            group["lr"] = 3e-3 * min(1.0, step / 100) * min(1.0, 5 * (1 - progress))
        optimizer.step()
        tokens += int(batch.maskable_BL.sum())
        if (step + 1) % 100 == 0:
            print(f"step {step + 1}/{num_steps}  {tokens:,} tokens  loss {loss.item():.3f}", flush=True)
    about = {
        "name": "pmlm-little",
        "trained_on": "little stories made up by scripts/train_little.py",
        "objective": "APLM and u-PMLM, both visibilities",
        "tokens_seen": tokens,
    }
    return LM(model.eval(), tokenizer, about, None, count_words(map(np.array, stories), tokenizer))


CARD = """# pmlm-little

A model of under 2 MB that tests can ask quickly. Trained in minutes by `scripts/train_little.py`
on little stories that the script makes up from a grammar; it knows those and nothing else. Licence: Apache-2.0.
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=1480)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", type=Path, default=Path(__file__).resolve().parents[1] / "tests" / "little")
    parser.add_argument("--stories", type=int, help="only print so many stories, to measure on")
    options = parser.parse_args()
    if options.stories:
        rng = random.Random(options.seed)
        print("\n\n".join(make_story(rng) for _ in range(options.stories)))
        return
    train(options.steps, options.seed).save(options.out, card=CARD, storage="float16")
    print(f"wrote {options.out}")


if __name__ == "__main__":
    main()

"""`make demo`: the model inside the package fills templates and shows the order in which it wrote."""

import pmlm

TEMPLATES = [
    ("Tom is a cat and Jerry is a mouse. [MASK:40]. Tom and Jerry become good friends in the end.", "l2r"),
    ("Once upon a time there was a [MASK] [MASK] named [MASK]. [MASK:12]", "margin"),
]


def main() -> None:
    lm = pmlm.load()
    print(f"{lm.about['name']}, {lm.model.num_parameters():,} parameters\n")
    for seed, (template, order) in enumerate(TEMPLATES):
        filled = lm.fill(template, order=order, seed=seed, best_of=8)
        print(f"template  {template}\nfilled    {filled.text}")
        written = " ".join(f"{step}:{filled.tokens[i].strip()}" for step, i in enumerate(filled.order, start=1))
        print(
            f"{order:9} {written}\nnll       {filled.nll:.2f} nats ({filled.visibility}, seed {filled.seed},", end=" "
        )
        print(f"the likeliest of {filled.best_of})\n")


if __name__ == "__main__":
    main()

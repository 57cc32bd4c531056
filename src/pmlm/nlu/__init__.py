"""Language understanding: GLUE and SQuAD as data, fine-tuning, metrics, and the use of what was fine-tuned."""

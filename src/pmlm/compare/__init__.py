"""The paper's tables at any scale: one protocol, several models, from text files to tables."""

"""Checkpoints in the formats of others: BERT's and GPT-2's, read into our one format and written from it."""

from pmlm.interop.convert import FORMATS, Format, Imported, find_format, read_model, write_model

__all__ = ["FORMATS", "Format", "Imported", "find_format", "read_model", "write_model"]

"""Text files as documents, and documents as framed rows of ids."""

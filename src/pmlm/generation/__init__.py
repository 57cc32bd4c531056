"""Text with blanks, and what fills them."""

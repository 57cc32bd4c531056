"""The HTTP service: thin, over the same writer as the command line. Needs the extra `serve`."""

"""The command line: one file per command, arguments in, text or JSON out."""

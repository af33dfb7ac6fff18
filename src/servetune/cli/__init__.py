"""The command line: one file per command, found through the table in main.py. The only layer that prints."""

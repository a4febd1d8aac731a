"""The command line, a file a command, and the files that are generated."""

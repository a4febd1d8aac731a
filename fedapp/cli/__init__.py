"""The command line, and generated files."""

"""Text: the lines of each client to sequences of symbols (McMahan et al. 2017, sections 2 and 3)."""

"""The components that ``fedapp init`` writes into a new app."""

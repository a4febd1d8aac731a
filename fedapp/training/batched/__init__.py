"""The batched trainer: a cohort in one compiled step."""

"""ClientUpdate: the local objective, the trainers and the evaluation."""

"""Small runs whose numbers are pinned: what they are (`runs`), how they are run (`driver`)."""

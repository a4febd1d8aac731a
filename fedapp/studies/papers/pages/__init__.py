"""Pages: an item's results as Markdown and HTML, and the index of all of them."""

"""Between the server and the nodes: sampling, messages, delivery, checks, aggregation, faults."""

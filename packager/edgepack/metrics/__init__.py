"""How much of what fp32 says in an output a variant says too: a metric for each kind of output."""

"""What a bundle carries to be served over HTTP: the Open Inference Protocol, a queue, metrics."""

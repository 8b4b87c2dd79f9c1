"""Steps that prove a variant: evaluation, goldens, errors per layer, odd inputs."""

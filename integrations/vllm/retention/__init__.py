"""What the events of jobs mean for their pins and for who gets memory. Knows nothing of vLLM."""

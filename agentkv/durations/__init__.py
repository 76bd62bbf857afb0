"""How long a bash command will run."""

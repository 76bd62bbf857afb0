"""What a bash command runs: its programs and features."""

"""The commands that measure and compare: one module each, with a `main(argv)`."""

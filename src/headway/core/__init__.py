"""The vocabulary: configs, errors, messages. Standard library only; imports nothing else of ours."""

"""What a person sees of a run: losses and metrics in; lines, files and pictures out."""

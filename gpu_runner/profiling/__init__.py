"""How long an engine's steps take, over a grid of what a step can hold."""

"""The commands: each module here with a function ``add(app)`` adds one, or a group of them."""

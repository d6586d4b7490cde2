"""`.forge/` and the clone's own state on disk: what the program reads and writes beside git.

    atomic    whole files or none: replace, read, remove, append a line
    config    every setting, from flags down to the user's own file
    ignore    what git is to track of `.forge/`, and the tree that `forge init` makes
    tasks     task files: one YAML document per task in `.forge/tasks/`
    markers   `participant.json` and `enabled`, which alone decide the class
    journal   what is not settled yet: changes under way, the offline queue, landings

The room runs no git and holds no rules of coordination; those are `git/` and `core/`.
"""

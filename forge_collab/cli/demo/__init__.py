"""``forge demo``: the whole story, on real clones and daemons, and checked at the end.

`command` is the command, `stage` the origin and the clones with what runs in them, `play` what
happens, step by step, `verdict` the check on the bare repository.
"""

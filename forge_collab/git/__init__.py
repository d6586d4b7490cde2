"""The only room that runs git.

- ``runner``      one git process: cleaned environment, time limit, process group
- ``repository``  the user's repository, read only: where it is, its config, remote, identity
- ``store``       the private bare repository: objects, fetch, push, what the remote has
- ``ssh``         one shared ssh connection
"""

import os

# GitPython looks for git when it is imported, and fails there and then where it finds none.
os.environ.setdefault("GIT_PYTHON_REFRESH", "quiet")

"""What forge costs, measured on real clones and daemons beside a plain ``git push``.

- ``world``  a bare origin, clones of it, their daemons; always cleaned up
- ``rows``   what is measured, one function for each line or group of lines
- ``table``  figures as a table or as one JSON document
- ``__main__``  ``python -m bench [NAME …] [--json]``
"""

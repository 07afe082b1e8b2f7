"""Tool calls of models that have none natively: written as text into the prompt, and read out of the reply.

`parsing.py` reads the formats that open models write, `client.py` puts a `ChatClient` in front of another one for the modes
`hermes` and `json`, `rescue.py` finds calls in the text of a native reply.
"""

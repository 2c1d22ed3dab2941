"""Verifies a message with the libraries that receivers use: webhooks.py FILE SECRET. Prints what they read as JSON."""

import json
import sys

import openai
from standardwebhooks.webhooks import Webhook

path, secret = sys.argv[1:]
with open(path, encoding="utf-8") as file:
    message = json.load(file)
body, headers = message["body"], message["headers"]
read = Webhook(secret).verify(body, headers)
event = openai.OpenAI(api_key="sk-any").webhooks.unwrap(body, headers, secret=secret)
try:
    Webhook(secret).verify(body + " ", headers)
    is_strict = False
except Exception:
    is_strict = True
told = {"type": read["type"], "is_strict": is_strict, "openai": type(event).__name__, "id": getattr(event.data, "id", None)}
print(json.dumps(told))

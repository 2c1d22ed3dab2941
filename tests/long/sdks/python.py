"""One errand of the stock Python SDK: python.py BASE_URL ERRAND. The last line says what came of it, as JSON."""

import json
import sys

import openai

base_url, errand = sys.argv[1:]
MESSAGES = [{"role": "user", "content": "Hello"}]
MODEL = "alpha-sonnet-4.5"
# The default is two retries: it stays.
waits = {"timeout": 2.0} if errand.endswith("-impatient") else {}
client = openai.OpenAI(base_url=base_url, api_key="sk-any", **waits)


def models():
    listed = [model.id for model in client.models.list()]
    one = client.models.retrieve("eta-5-mini").id
    try:
        client.models.retrieve("gpt-4o")
        none = None
    except openai.NotFoundError as error:
        none = error.status_code
    return {"ids": listed, "one": one, "none": none}


def chat():
    answer = client.chat.completions.create(model=MODEL, messages=MESSAGES, temperature=0.5)
    assert answer.choices[0].finish_reason == "stop" and answer.usage is None
    return {"text": answer.choices[0].message.content}


def stream():
    chunks = client.chat.completions.create(
        model=MODEL, messages=MESSAGES, stream=True, stream_options={"include_usage": True}
    )
    return {"text": "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)}


def mistake():
    client.chat.completions.create(model="gpt-4o", messages=MESSAGES)


def order():
    return {"id": client.videos.create(prompt="a tide").id}


def video():
    made = client.videos.create(prompt="a tide", model="video-c-2", seconds="6", size="1280x720")
    done = client.videos.poll(made.id)
    listed = [video.id for video in client.videos.list()]
    content = client.videos.download_content(made.id).read()
    return {
        "status": done.status,
        "seconds": made.seconds,
        "is_listed": made.id in listed and done.id == made.id,
        "is_mp4": content[4:8] == b"ftyp",
        "bytes": len(content),
    }


ERRANDS = {
    "models": models,
    "chat": chat,
    "stream": stream,
    "mistake": mistake,
    "order": order,
    "video": video,
}

try:
    told = ERRANDS[errand.removesuffix("-impatient")]()
except openai.APIError as error:
    body = error.body if isinstance(error.body, dict) else {}
    told = {
        "error": type(error).__name__,
        "status": getattr(error, "status_code", None),
        "message": error.message,
        "code": body.get("code"),
        "param": body.get("param"),
        "charged": body.get("charged"),
    }
print(json.dumps(told))

"""One agent of the official Python SDK: agents.py URL MODE. The last line says what came of it, as JSON."""

import asyncio
import json
import sys

import mcp_types as types
from mcp.client.client import Client

url, mode = sys.argv[1:]
ORDER = {"prompt": f"a tide from Python, {mode}"}
asked = []


async def accept(context, params):
    asked.append(params.message)
    return types.ElicitResult(action="accept", content={})


async def main():
    person = accept if mode == "auto" else None
    async with Client(url, mode=mode, elicitation_callback=person) as client:
        tools = [tool.name for tool in (await client.list_tools()).tools]
        quoted = (await client.call_tool("quote", {"video": ORDER})).structured_content
        order = ORDER if person else {**ORDER, "quote": quoted["quote"]}
        bought = [(await client.call_tool("create_video", order)).structured_content for _ in range(2)]
        refused = await client.call_tool("chat", {"model": "gpt-4o"})
        return {
            "version": client.protocol_version,
            "tools": tools,
            "quoted": quoted,
            "bought": bought,
            "asked": asked,
            "refused": refused.structured_content,
            "is_error": refused.is_error,
        }


print(json.dumps(asyncio.run(main())))

"""An MCP server without the SDK: one tool, over standard input and output. Writes its process id beside itself."""

import json
import os
import sys
from pathlib import Path

TOOL = {
    "name": "look_up",
    "description": "Looks a case up.",
    "inputSchema": {"type": "object", "properties": {"case": {"type": "string"}}},
}


def answer(method, params):
    if method == "initialize":
        return {"protocolVersion": params["protocolVersion"], "capabilities": {}, "serverInfo": {"name": "words"}}
    if method == "tools/list":
        return {"tools": [TOOL]}
    return {"content": [{"type": "text", "text": f"found {params['arguments']['case']}"}]}


def main():
    with Path(sys.argv[1], f"{os.getpid()}.pid").open("w", encoding="utf-8"):
        for line in sys.stdin:
            message = json.loads(line)
            if "id" in message:
                result = answer(message["method"], message.get("params"))
                sys.stdout.write(json.dumps({"jsonrpc": "2.0", "id": message["id"], "result": result}) + "\n")
                sys.stdout.flush()


if __name__ == "__main__":
    main()

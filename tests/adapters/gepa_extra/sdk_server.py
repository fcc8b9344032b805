"""The same MCP server, made with the SDK."""

import os
import sys
from pathlib import Path

from mcp.server import MCPServer

server = MCPServer("words")


@server.tool()
def look_up(case: str) -> str:
    """Looks a case up."""
    return f"found {case}"


if __name__ == "__main__":
    Path(sys.argv[1], f"{os.getpid()}.pid").touch()
    server.run()

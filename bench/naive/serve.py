"""Serves the wheels of the build context to pip, with the word of a package index that they never change."""

import http.server
import os
import sys


class Handler(http.server.SimpleHTTPRequestHandler):
    """Files, and listings of folders."""

    def end_headers(self):
        """As PyPI sends them with its files."""
        self.send_header("Cache-Control", "max-age=365000000, immutable, public")
        super().end_headers()


if __name__ == "__main__":
    os.chdir(sys.argv[1])
    http.server.ThreadingHTTPServer(("127.0.0.1", 8099), Handler).serve_forever()

"""HTTP: the REST API, behind one gate, one guard and one table of rules; and the listener that serves it."""

from postroom.servers.http.app import HttpApp, create_http
from postroom.servers.http.cursors import CursorKey, CursorKeys
from postroom.servers.http.listener import HttpLimits, HttpListener
from postroom.servers.http.services import About, HttpServices

__all__ = ["About", "CursorKey", "CursorKeys", "HttpApp", "HttpLimits", "HttpListener", "HttpServices", "create_http"]

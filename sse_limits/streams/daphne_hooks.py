"""What our server stands on inside daphne, autobahn and Twisted, and whether this installation still has it.

None of it is documented, so each daphne release is looked at before pyproject.toml allows it. A hook is a function with
the arguments that we pass or are passed, and with the names it works with: where such a name is gone, what we do about
it no longer does anything.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import autobahn.twisted.websocket
import autobahn.websocket.protocol
import daphne.cli
import daphne.http_protocol
import daphne.server
import daphne.ws_protocol
import twisted.internet.abstract
import twisted.internet.tcp
import twisted.web.http

TESTED_DAPHNE = "4.2."


@dataclass(frozen=True, slots=True)
class Hook:
    """A function that we replace, call, or count on."""

    owner: Any
    name: str
    arguments: str  # as they are named after self
    uses: str = ""  # names of attributes and globals that it works with
    why: str = ""

    def problems(self) -> Iterator[str]:
        """What is not as it was."""
        where = f"{self.owner.__module__}.{self.owner.__qualname__}.{self.name}"
        function = inspect.unwrap(getattr(self.owner, self.name, None))  # type: ignore[arg-type] # None is seen below
        if not callable(function):
            yield f"{where} is gone: {self.why}"
            return
        found = [name for name in inspect.signature(function).parameters if name != "self"]
        if found[: len(self.arguments.split())] != self.arguments.split():
            yield f"{where} takes ({', '.join(found)}), not ({', '.join(self.arguments.split())}): {self.why}"
        missing = set(self.uses.split()) - _names(function)
        if missing:
            yield f"{where} no longer uses {', '.join(sorted(missing))}: {self.why}"


def _names(function: Any) -> set[str]:
    code = function.__code__
    names = {*code.co_names, *(text for text in code.co_consts if isinstance(text, str))}
    for inner in code.co_consts:
        names.update(getattr(inner, "co_names", ()))
    for keys in (const for const in code.co_consts if isinstance(const, tuple)):  # names of keyword arguments
        names.update(key for key in keys if isinstance(key, str))
    return names


_Server = daphne.server.Server
_Request = daphne.http_protocol.WebRequest
_WebSocket = daphne.ws_protocol.WebSocketProtocol
_Autobahn = autobahn.twisted.websocket.WebSocketServerProtocol
_Socket = twisted.internet.abstract.FileDescriptor

HOOKS: tuple[Hook, ...] = (
    # daphne's server
    Hook(_Server, "run", "", "http_factory ws_factory setProtocolOptions listen application_checker timeout_checker "
         "kill_all_applications addSystemEventTrigger connections", "our factories go in where it assigns its own"),
    Hook(_Server, "listen_success", "port", why="the listening sockets are prepared in it"),
    Hook(_Server, "create_application", "protocol scope", "Queue handle_reply connections application_instance",
         "replaced: the app's receive and the end of the app are ours"),
    Hook(_Server, "handle_reply", "protocol message", "check_headers_type handle_reply disconnected connections",
         "the app's send waits around it"),
    Hook(_Server, "protocol_connected", "protocol", "connections", "it makes the entry that we keep an app in"),
    Hook(_Server, "protocol_disconnected", "protocol", "disconnected connections", "the gate is opened after it"),
    Hook(_Server, "application_checker", "", "callLater application_close_timeout application_instance disconnected",
         "it cancels apps that outlive their client"),
    Hook(_Server, "timeout_checker", "", "check_timeouts callLater", "replaced: one error must not end it"),
    Hook(_Server, "kill_all_applications", "", "connections application_instance", "replaced by our way to stop"),
    Hook(_Server, "stop", "", "abort_start", "it ends a server that cannot start"),
    Hook(daphne.cli.CommandLineInterface, "run", "args", "server_class abort_start", "it takes our server class"),
    # daphne's protocols
    Hook(_Request, "process", "", "ws_factory buildProtocol makeConnection create_application application_queue "
         "put_nowait protocol_disconnected", "it hands a WebSocket over, and an app its request"),
    Hook(_Request, "handle_reply", "message", "_response_started finish finished channel",
         "a response passes through it"),
    Hook(_Request, "finish", "", "send_disconnect protocol_disconnected", "the producer is taken away before it"),
    Hook(_Request, "connectionLost", "reason", "send_disconnect protocol_disconnected", "the app is told by it"),
    Hook(_Request, "handle_exception", "exception", "basic_error", "replaced once the response has started"),
    Hook(_Request, "basic_error", "status status_text body", "handle_reply", "it answers for an app that did not"),
    Hook(daphne.http_protocol.HTTPFactory, "buildProtocol", "addr", "requestFactory", "our requests go in there"),
    Hook(_WebSocket, "onConnect", "request", "handshake_deferred create_application protocol_connected "
         "applicationCreateWorked", "it starts the app of a WebSocket"),
    Hook(_WebSocket, "applicationCreateWorked", "application_queue", "put_nowait application_queue",
         "the inbox is set up in it"),
    Hook(_WebSocket, "onMessage", "payload isBinary", "application_queue put_nowait", "reading pauses after it"),
    Hook(_WebSocket, "onClose", "wasClean code reason", "protocol_disconnected put_nowait", "replaced"),
    Hook(_WebSocket, "handle_reply", "message", "serverAccept serverReject serverClose serverSend", "replaced"),
    Hook(_WebSocket, "check_timeouts", "", "serverReject serverClose _sendAutoPing last_ping", "it ends by ours"),
    # autobahn
    Hook(_Autobahn, "connectionMade", "", "_connectionMade", "the transport is taken over after it"),
    Hook(_Autobahn, "consumeData", "", "processData processHandshake state", "replaced: it pauses with the inbox"),
    Hook(_Autobahn, "processData", "", "onFrameBegin", "one step of reading"),
    Hook(_Autobahn, "processHandshake", "", "onConnect succeedHandshake failHandshake", "the denials replace its own"),
    Hook(_Autobahn, "succeedHandshake", "res", "STATE_OPEN consumeData headers", "an accept ends in it"),
    Hook(_Autobahn, "failHandshake", "reason code responseHeaders", "dropConnection", "replaced by our denials"),
    Hook(_Autobahn, "dropConnection", "abort", "_closeConnection unregisterProducer STATE_CLOSED",
         "the gate is opened after it"),
    Hook(_Autobahn, "_closeConnection", "abort", "abortConnection loseConnection", "replaced: it may linger"),
    Hook(autobahn.websocket.protocol.WebSocketProtocol, "_connectionLost", "reason", "_onClose",
         "the app is told from there"),
    Hook(_Autobahn, "sendCloseFrame", "code reasonUtf8 isReply", "STATE_CLOSING closeHandshakeTimeout",
         "any close code goes through it"),
    Hook(_Autobahn, "sendPreparedMessage", "preparedMsg", "payloadHybi sendData", "messages pass the inbound limit"),
    Hook(_Autobahn, "sendData", "data", "write transport", "a denial is written by it"),
    Hook(_Autobahn, "onMessageFrameBegin", "length", "maxMessagePayloadSize _max_message_size_exceeded",
         "it closes with 1009"),
    # Twisted
    Hook(twisted.web.http.Request, "registerProducer", "producer streaming", "registerProducer channel",
         "the gate of a response is registered by it"),
    Hook(twisted.web.http.Request, "unregisterProducer", "", "producer", "and taken away"),
    Hook(twisted.web.http.HTTPChannel, "rawDataReceived", "data", "_handlingRequest _dataBuffer",
         "a WebSocket gets what else was read with its request"),
    Hook(twisted.web.http.HTTPChannel, "pauseProducing", "", "_requestProducer pauseProducing", "it closes the gate"),
    Hook(twisted.web.http.HTTPChannel, "resumeProducing", "", "_requestProducer resumeProducing", "it opens the gate"),
    Hook(_Socket, "_maybePauseProducer", "", "_isSendBufferFull pauseProducing", "it closes the gate"),
    Hook(_Socket, "_isSendBufferFull", "", "dataBuffer _tempDataLen bufferSize", "the high-water mark"),
    Hook(_Socket, "doWrite", "", "resumeProducing offset dataBuffer _tempDataLen", "it opens the gate"),
    Hook(_Socket, "loseWriteConnection", "", "_writeDisconnecting", "a denial ends by it"),
    Hook(twisted.internet.tcp.Connection, "abortConnection", "", "connectionLost ConnectionAborted", "abort"),
    Hook(twisted.internet.tcp.Port, "doRead", "", "numberAccepts _accept", "accepts are bounded around it"),
)  # fmt: skip


if twisted.web.http.H2_ENABLED:
    from twisted.web._http2 import H2Connection

    HOOKS += (
        Hook(H2Connection, "writeDataToStream", "streamID data", "_outboundStreamQueues", "its queue is bounded by it"),
        Hook(H2Connection, "abortRequest", "streamID", "_requestDone", "abort of one stream"),
    )


def incompatibilities() -> list[str]:
    """What of our hooks this installation lacks, one line each; empty when all is well."""
    installed = daphne.__version__
    found = [f"daphne {installed}: {problem}" for hook in HOOKS for problem in hook.problems()]
    if not installed.startswith(TESTED_DAPHNE):
        found.insert(0, f"daphne {installed} is not one of {TESTED_DAPHNE}x, which our server was made for")
    return found

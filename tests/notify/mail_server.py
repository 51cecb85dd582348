"""A little mail server for tests, on loopback: takes what it is told to take, and refuses the rest."""

import asyncio
import ssl
from contextlib import suppress
from email import message_from_bytes, policy
from email.message import EmailMessage
from types import TracebackType
from typing import Self


class MailServer:
    """`script` holds answers to MAIL, one per message; when it is empty, all is taken. With `tls` it offers
    STARTTLS, and notes which of what it was told came encrypted."""

    def __init__(self, tls: ssl.SSLContext | None = None) -> None:
        self.port = 0
        self.tls = tls
        self.said: list[tuple[str, bool]] = []  # each verb, and whether it came encrypted
        self.script: list[str] = []
        self.refuse: set[str] = set()  # recipients
        self.taken: list[tuple[str, list[str], EmailMessage]] = []
        self.logins: list[str] = []

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", self.port)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.close()
        await self._server.wait_closed()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(ssl.SSLError, ConnectionError):  # a client that does not trust us hangs up
            await self._talk(reader, writer)

    async def _talk(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        sender, to = "", list[str]()
        writer.write(b"220 test\r\n")
        try:
            while line := (await reader.readline()).decode().strip():
                verb = line[:4].upper()
                is_encrypted = writer.get_extra_info("ssl_object") is not None
                self.said.append((verb, is_encrypted))
                answer = "250 ok"
                if verb == "EHLO":
                    offer = "250-STARTTLS\r\n" if self.tls and not is_encrypted else ""
                    answer = f"250-test\r\n{offer}250 AUTH PLAIN"
                elif verb == "STAR" and self.tls:
                    writer.write(b"220 go on\r\n")
                    await writer.drain()
                    await writer.start_tls(self.tls)
                    continue
                elif verb == "AUTH":
                    self.logins.append(line.split()[-1])
                    answer = "235 welcome"
                elif verb == "MAIL":
                    sender, to = line, []
                    answer = self.script.pop(0) if self.script else answer
                elif verb == "RCPT":
                    address = line.partition("<")[2].rstrip(">")
                    answer = "550 nobody here" if address in self.refuse else answer
                    to += [address] if answer.startswith("250") else []
                elif verb == "DATA":
                    writer.write(b"354 go on\r\n")
                    body = (await reader.readuntil(b"\r\n.\r\n"))[:-5].replace(b"\r\n..", b"\r\n.")
                    message = message_from_bytes(body, policy=policy.default)
                    self.taken.append((sender, to, message))
                writer.write(b"221 bye\r\n" if verb == "QUIT" else f"{answer}\r\n".encode())
                if verb == "QUIT":
                    return
        finally:
            writer.close()

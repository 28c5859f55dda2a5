# SPDX-License-Identifier: Apache-2.0
"""The part of tftpy that the tests' server uses (RFC 1350: read requests, octet mode)."""

import os
import socket
import struct

READ, DATA, ACK, ERROR = 1, 3, 4, 5
BLOCK = 512


class TftpShared:
    DEF_TFTP_PORT = 69


class TftpServer:
    def __init__(self, tftproot):
        self.root = tftproot

    def listen(self, address, port):
        listener = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        listener.bind((address, int(port)))
        while True:
            request, client = listener.recvfrom(1500)
            code, name = struct.unpack("!H", request[:2])[0], request[2:].split(b"\0")[0].decode()
            transfer = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
            transfer.settimeout(1)
            if code == READ:
                self.send(transfer, client, os.path.join(self.root, name.lstrip("/")))
            transfer.close()

    def send(self, transfer, client, path):
        try:
            with open(path, "rb") as f:
                content = f.read()
        except OSError:
            transfer.sendto(struct.pack("!HH", ERROR, 1) + b"not found\0", client)
            return
        for block in range(len(content) // BLOCK + 1):
            packet = struct.pack("!HH", DATA, block + 1) + content[block * BLOCK:(block + 1) * BLOCK]
            for _ in range(5):
                transfer.sendto(packet, client)
                try:
                    if transfer.recv(1500)[:4] == struct.pack("!HH", ACK, block + 1):
                        break
                except socket.timeout:
                    continue
            else:
                return

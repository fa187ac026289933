"""A way between two machines that a test can cut: a relay of TCP connections on this one.

A node dials 127.0.0.2, where the relay listens at the ports that the head has at 127.0.0.1: that of the control connection, and those
of the trainers' meetings, which it finds as they appear. While a direction is cut its bytes stay where they are, as packets that are
lost and sent again."""
import os
import selectors
import socket
import threading
import time

HEAD, NODE = "127.0.0.1", "127.0.0.2"
PIECE = 65536


class Relay:
    def __init__(self, port, meetings):
        """meetings: the folder with the files of the trainers' meetings."""
        self.meetings, self.ports, self.seen, self.lines = meetings, set(), set(), []
        self.open_to = {"head": True, "node": True}    # which way bytes go
        self.lock, self.over = threading.Lock(), False
        self.listen(port)
        self.thread = threading.Thread(target=self.look, daemon=True)
        self.thread.start()

    def close(self):
        self.over = True
        self.thread.join()
        for line in self.lines:
            for s in line:
                s.close()

    def cut(self, head=True, node=True):
        """No byte gets to these any more, until heal."""
        self.open_to = {"head": not head, "node": not node}

    def heal(self):
        self.open_to = {"head": True, "node": True}

    def listen(self, port):
        if port in self.ports:    # of a meeting before, whose trainer has been killed
            return
        s = socket.create_server((NODE, port), backlog=64)
        self.ports.add(port)
        threading.Thread(target=self.serve, args=(s, port), daemon=True).start()

    def look(self):
        while not self.over:
            try:
                names = os.listdir(self.meetings)
            except FileNotFoundError:
                names = []
            for name in names:
                if not name.startswith("trainers-") or name in self.seen:
                    continue
                try:
                    with open(os.path.join(self.meetings, name)) as f:
                        words = f.readline()
                except FileNotFoundError:
                    continue
                if words.endswith("\n"):
                    self.seen.add(name)
                    self.listen(int(words.split()[1]))
            time.sleep(0.002)

    def serve(self, listener, port):
        listener.settimeout(0.1)
        while not self.over:
            try:
                near, _ = listener.accept()
            except TimeoutError:
                continue
            try:
                far = socket.create_connection((HEAD, port), timeout=5)
            except OSError:
                near.close()
                continue
            for s in (near, far):
                s.settimeout(None)
                s.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            with self.lock:
                self.lines.append((near, far))
            for way in ((near, far, "head"), (far, near, "node")):
                threading.Thread(target=self.carry, args=way, daemon=True).start()
        listener.close()

    def carry(self, source, sink, to):
        selector = selectors.DefaultSelector()
        selector.register(source, selectors.EVENT_READ)
        try:
            while not self.over:
                if not self.open_to[to]:
                    time.sleep(0.005)
                    continue
                if not selector.select(0.1):
                    continue
                data = source.recv(PIECE)
                while not self.open_to[to] and not self.over:    # an end is not seen during a cut, either
                    time.sleep(0.005)
                if not data:
                    break
                sink.sendall(data)
        except OSError:
            pass
        finally:
            for s in (source, sink):
                try:
                    s.shutdown(socket.SHUT_RDWR)
                except OSError:
                    pass

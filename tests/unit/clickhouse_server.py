# SPDX-License-Identifier: Apache-2.0
"""A ClickHouse server of a test's own, on loopback, in a folder of its own."""
import pathlib
import shutil
import socket
import subprocess
import time
import urllib.error
import urllib.parse
import urllib.request

UNPACKED = pathlib.Path(__file__).resolve().parents[2] / "build/clickhouse/usr/sbin/clickhouse-server"
PROGRAM = UNPACKED if UNPACKED.exists() else shutil.which("clickhouse-server")
PASSWORD = "a secret:@/?"
CONFIG = """<yandex>
<logger><level>warning</level><log>{folder}/log</log><errorlog>{folder}/errors</errorlog></logger>
<listen_host>127.0.0.1</listen_host><http_port>{port}</http_port><tcp_port>{tcp}</tcp_port>{tls}{cluster}
<path>{folder}/data/</path><tmp_path>{folder}/tmp/</tmp_path><users_config>users.xml</users_config>
<default_profile>default</default_profile><default_database>default</default_database><mark_cache_size>67108864</mark_cache_size>
</yandex>"""
TLS = """<https_port>{https}</https_port><openSSL><server><certificateFile>{folder}/cert.pem</certificateFile>
<privateKeyFile>{folder}/key.pem</privateKeyFile><verificationMode>none</verificationMode></server></openSSL>"""
SHARD = f"<shard><replica><host>127.0.0.1</host><port>{{}}</port><user>default</user><password>{PASSWORD}</password></replica></shard>"
USERS = f"""<yandex><profiles><default/></profiles><quotas><default/></quotas>
<users><default><password>{PASSWORD}</password><networks><ip>127.0.0.1</ip></networks><profile>default</profile><quota>default</quota></default></users>
</yandex>"""


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


class Server:
    """Runs from start() to kill(); address(), for --to, stays the same. With a disk of its own, of so many bytes, that is gone with it."""

    def __init__(self, folder, tls=False, disk=None):
        self.folder, self.process, self.disk = folder, None, disk
        self.port, self.https, self.tcp = free_port(), free_port(), free_port()
        folder.mkdir()
        if tls:
            subprocess.run(["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=localhost", "-addext",
                            "subjectAltName=IP:127.0.0.1", "-keyout", folder / "key.pem", "-out", folder / "cert.pem"],
                           check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        self.tls = TLS.format(folder=folder, https=self.https) if tls else ""
        self.configure([])
        (folder / "users.xml").write_text(USERS)

    def configure(self, shards):
        """@shards: the servers of the cluster `lab`."""
        cluster = f"<remote_servers><lab>{''.join(SHARD.format(s.tcp) for s in shards)}</lab></remote_servers>" if shards else ""
        (self.folder / "config.xml").write_text(CONFIG.format(folder=self.folder, port=self.port, tcp=self.tcp, tls=self.tls, cluster=cluster))

    def start(self):
        with open(self.folder / "output", "ab") as output:
            words = [PROGRAM, f"--config-file={self.folder}/config.xml"]
            if self.disk:
                mount = f"mkdir -p data && mount -t tmpfs -o size={self.disk} none data && exec \"$@\""
                words = ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c", mount, "sh", *words]
            self.process = subprocess.Popen(words, stdout=output, stderr=output, cwd=self.folder)
        until = time.monotonic() + 60
        while True:
            try:
                return self.ask("SELECT 1") and self
            except (urllib.error.URLError, ConnectionError) as e:
                assert time.monotonic() < until and self.process.poll() is None, e
                time.sleep(0.05)

    def kill(self):
        if self.process and self.process.poll() is None:
            self.process.kill()
            self.process.wait()

    def on_disk(self, name):
        """A file of its disk, as this process sees it."""
        return pathlib.Path(f"/proc/{self.process.pid}/root{self.folder}/data/{name}")

    def ask(self, sql):
        """Rows of strings."""
        password = urllib.request.HTTPPasswordMgrWithDefaultRealm()
        url = f"http://127.0.0.1:{self.port}/"
        password.add_password(None, url, "default", PASSWORD)
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}), urllib.request.HTTPBasicAuthHandler(password))
        with opener.open(url, sql.encode(), timeout=60) as answer:
            return [line.split("\t") for line in answer.read().decode().splitlines()]

    def one(self, sql):
        return self.ask(sql)[0][0]

    def address(self, database, user=f"default:{urllib.parse.quote(PASSWORD, safe='')}", more=""):
        return f"clickhouse://{user}@127.0.0.1:{self.port}/{database}{more}"

//! A real server of the S3 protocol, and buckets on it.
//!
//! **Rule:** one server serves all tests of a process, each with a bucket of its own; it dies with the process.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use crate::hosts::Host;
use crate::ports::{Port, free_port};
use crate::process::{Running, wait_until};
use crate::programs::project_root;

/// The key id that clients use.
pub const S3_KEY_ID: &str = "quorate-key-id";
/// The secret that clients use; no text of ours may ever carry it.
pub const S3_SECRET: &str = "quorate-secret-never-shown";

/// A bucket on a running server.
#[derive(Debug, Clone)]
pub struct S3 {
    /// The server's port.
    pub port: u16,
    /// The bucket.
    pub bucket: String,
}

struct Server {
    port: Port,
    _running: Running,
}

/// A fresh bucket on the server of this process, which is started on first use.
pub fn s3() -> S3 {
    bucket_with("")
}

/// The same with object lock.
pub fn s3_locked() -> S3 {
    bucket_with("x-amz-bucket-object-lock-enabled: true\r\n")
}

fn bucket_with(headers: &str) -> S3 {
    static SERVER: OnceLock<Server> = OnceLock::new();
    static NEXT: AtomicU32 = AtomicU32::new(1);
    let port = SERVER.get_or_init(start).port.number();
    let bucket = format!("bucket-{}", NEXT.fetch_add(1, Ordering::Relaxed));
    let made = request(port, "PUT", &format!("/{bucket}"), headers, b"");
    assert!(made.starts_with("HTTP/1.1 200"), "a bucket can be made: {made}");
    S3 { port, bucket }
}

impl S3 {
    /// The store's URL for a prefix.
    pub fn url(&self, prefix: &str) -> String {
        format!("s3://{}/{prefix}", self.bucket)
    }

    /// The server's own address.
    pub fn endpoint(&self) -> String {
        format!("http://127.0.0.1:{}", self.port)
    }

    /// The environment of a client that talks to the server.
    pub fn env(&self) -> Vec<(String, String)> {
        self.env_at(&self.endpoint())
    }

    /// The environment of a client that talks to something in front of the server.
    pub fn env_at(&self, endpoint: &str) -> Vec<(String, String)> {
        let pairs = [
            ("AWS_ACCESS_KEY_ID", S3_KEY_ID),
            ("AWS_SECRET_ACCESS_KEY", S3_SECRET),
            ("AWS_REGION", "us-east-1"),
            ("AWS_ENDPOINT_URL", endpoint),
            ("AWS_ALLOW_HTTP", "true"),
        ];
        pairs.map(|(key, value)| (key.to_owned(), value.to_owned())).to_vec()
    }

    /// Sends a request to the bucket as it is, and gives the answer as it is.
    pub fn raw(&self, method: &str, path: &str, headers: &str, body: &[u8]) -> String {
        request(self.port, method, &format!("/{}/{path}", self.bucket), headers, body)
    }
}

/// A server that asks for the right key, and the environment of a client that has it.
pub struct StrictS3 {
    /// The bucket on it.
    pub s3: S3,
    key: S3Key,
    _server: Server,
}

/// What a client signs with.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct S3Key {
    /// Its name.
    pub id: String,
    /// What proves it.
    pub secret: String,
}

/// Starts a server of its own that checks signatures and what a user may do.
pub fn s3_strict() -> StrictS3 {
    let server = start();
    let port = server.port.number();
    let s3 = S3 { port, bucket: "bucket-strict".to_owned() };
    s3.raw("PUT", "", "", b"");
    iam(port, "Action=CreateUser");
    let key = make_key(port);
    let policy = "%7B%22Version%22%3A%222012-10-17%22%2C%22Statement%22%3A%5B%7B%22Effect%22%3A%22Allow%22%2C\
                  %22Action%22%3A%22s3%3A%2A%22%2C%22Resource%22%3A%22%2A%22%7D%5D%7D";
    iam(port, &format!("Action=PutUserPolicy&PolicyName=all&PolicyDocument={policy}"));
    check_after(port, 0);
    StrictS3 { s3, key, _server: server }
}

impl StrictS3 {
    /// The environment of a client with the right key, or with a wrong secret.
    pub fn env(&self, right: bool) -> Vec<(String, String)> {
        let mut env = self.s3.env();
        env[0].1.clone_from(&self.key.id);
        if right {
            env[1].1.clone_from(&self.key.secret);
        }
        env
    }

    /// The key that it was started with.
    pub fn key(&self) -> &S3Key {
        &self.key
    }

    /// One more key of the same user.
    pub fn another_key(&self) -> S3Key {
        self.unchecked(make_key)
    }

    /// From now on this key is refused.
    pub fn revoke(&self, key: &S3Key) {
        let removed = self.unchecked(|port| iam(port, &format!("Action=DeleteAccessKey&AccessKeyId={}", key.id)));
        assert!(removed.starts_with("HTTP/1.1 200"), "{removed}");
    }

    /// The server's administrator has no key: nothing is checked for as long as this takes.
    fn unchecked<T>(&self, work: impl Fn(u16) -> T) -> T {
        check_after(self.s3.port, 100_000);
        let done = work(self.s3.port);
        check_after(self.s3.port, 0);
        done
    }
}

/// So many requests later, each is checked.
fn check_after(port: u16, requests: u32) {
    let headers = "Content-Type: text/plain\r\n";
    let set = request(port, "POST", "/moto-api/reset-auth", headers, requests.to_string().as_bytes());
    assert!(set.starts_with("HTTP/1.1 200"), "{set}");
}

/// Asks for something about users.
fn iam(port: u16, action: &str) -> String {
    let headers = "Content-Type: application/x-www-form-urlencoded\r\nAuthorization: AWS4-HMAC-SHA256 \
                   Credential=x/20260101/us-east-1/iam/aws4_request, SignedHeaders=host, Signature=x\r\n";
    let body = format!("Version=2010-05-08&UserName=backup&{action}");
    request(port, "POST", "/", headers, body.as_bytes())
}

fn make_key(port: u16) -> S3Key {
    let made = iam(port, "Action=CreateAccessKey");
    let part = |name: &str| {
        let (_, after) = made.split_once(&format!("<{name}>")).unwrap_or_else(|| panic!("no {name} in {made}"));
        after.split('<').next().unwrap_or_default().to_owned()
    };
    S3Key { id: part("AccessKeyId"), secret: part("SecretAccessKey") }
}

/// The server, with one object stored at a time: it looks for an object and stores the new one in two steps, on many threads, so that
/// two writers who must not both win (`If-None-Match`) now and then did. Amazon's looks and stores in one.
const ONE_AT_A_TIME: &str = "\
import threading, moto.server
from moto.s3.responses import S3Response
lock, put = threading.Lock(), S3Response.put_object
def one_at_a_time(self):
    with lock:
        return put(self)
S3Response.put_object = one_at_a_time
moto.server.main()
";

/// A server on a host of its own with this bucket, and the environment of clients on other hosts.
pub fn s3_on(host: &Host, bucket: &str) -> (Running, Vec<(String, String)>) {
    const PORT: u16 = 9000;
    let (python, port) = (python(), PORT.to_string());
    let args = ["-c", ONE_AT_A_TIME, "-H", "0.0.0.0", "-p", &port].map(str::to_owned);
    let running = host.start(&python, &args, &[]);
    host.within(|| {
        wait_until("the S3 server to answer", Duration::from_secs(60), || {
            TcpStream::connect(("127.0.0.1", PORT)).is_ok()
        });
        let made = request(PORT, "PUT", &format!("/{bucket}"), "", b"");
        assert!(made.starts_with("HTTP/1.1 200"), "a bucket can be made: {made}");
    });
    let s3 = S3 { port: PORT, bucket: bucket.to_owned() };
    (running, s3.env_at(&format!("http://{}:{PORT}", host.address())))
}

/// A server of its own, and a bucket on it.
pub struct OwnS3 {
    /// The bucket.
    pub s3: S3,
    _server: Server,
}

/// Starts a server of its own with this environment: that of a clock, for example.
pub fn s3_with(env: &[(String, String)]) -> OwnS3 {
    let server = start_with(env);
    let s3 = S3 { port: server.port.number(), bucket: "bucket-own".to_owned() };
    let made = s3.raw("PUT", "", "", b"");
    assert!(made.starts_with("HTTP/1.1 200"), "a bucket can be made: {made}");
    OwnS3 { s3, _server: server }
}

fn python() -> std::path::PathBuf {
    let python = project_root().join(".tools/s3/bin/python");
    assert!(python.exists(), "`{}` is missing: run `make tools`", python.display());
    python
}

fn start() -> Server {
    start_with(&[])
}

fn start_with(env: &[(String, String)]) -> Server {
    let python = python();
    let port = free_port();
    let args = ["-c", ONE_AT_A_TIME, "-H", "127.0.0.1", "-p", &port.to_string()].map(str::to_owned);
    let running = Running::start(&python, &args, env);
    let number = port.number();
    wait_until("the S3 server to answer", Duration::from_secs(60), || {
        TcpStream::connect(("127.0.0.1", number)).is_ok()
    });
    Server { port, _running: running }
}

/// One request over a connection of its own.
fn request(port: u16, method: &str, path: &str, headers: &str, body: &[u8]) -> String {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).expect("the S3 server accepts connections");
    let head = format!(
        "{method} {path} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nConnection: close\r\n{headers}Content-Length: {}\r\n\r\n",
        body.len()
    );
    stream.write_all(head.as_bytes()).and_then(|()| stream.write_all(body)).expect("the S3 server takes requests");
    let mut answer = Vec::new();
    let _ = stream.read_to_end(&mut answer);
    String::from_utf8_lossy(&answer).into_owned()
}

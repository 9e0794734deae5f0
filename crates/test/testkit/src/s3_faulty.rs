//! A proxy in front of an S3 server that does what networks and servers do on bad days.
//!
//! **Rule:** what goes wrong follows from the seed and the number of the request alone. The weather can be changed while
//! it runs.

use std::collections::VecDeque;
use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use crate::ports::{Port, free_port};
use crate::s3::S3;

/// What can go wrong with one request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mishap {
    /// 500, and nothing was done.
    Error,
    /// 503 with `SlowDown`, and nothing was done.
    Busy,
    /// It was done, and 500 is answered.
    DoneThenError,
    /// It was done, and the connection is closed without an answer.
    DoneThenDropped,
    /// Half of the request arrives at the server.
    CutRequest,
    /// Half of the answer arrives at the client.
    CutAnswer,
    /// No answer for a long time, and nothing was done.
    Hang,
}

/// How things are in general.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Weather {
    /// Everything passes.
    Healthy,
    /// Connections are closed at once.
    Down,
    /// This many of 100 requests meet a mishap; listings come in small pages, each in any order.
    Flaky(u8),
}

/// The proxy. Dropped, it takes no more connections.
pub struct FaultyS3 {
    port: Port,
    state: Arc<State>,
}

struct State {
    upstream: u16,
    seed: u64,
    weather: Mutex<Weather>,
    next: Mutex<VecDeque<Mishap>>,
    hang: Mutex<Duration>,
    requests: AtomicU64,
    mishaps: AtomicU64,
    seen: Mutex<Vec<String>>,
    protects: AtomicBool,
    ended: AtomicBool,
}

const MISHAPS: [Mishap; 7] = [
    Mishap::Error,
    Mishap::Busy,
    Mishap::DoneThenError,
    Mishap::DoneThenDropped,
    Mishap::CutRequest,
    Mishap::CutAnswer,
    Mishap::Hang,
];

/// Names of a listing's page in flaky weather.
const PAGE: u64 = 7;

impl FaultyS3 {
    /// Starts one in front of a server.
    pub fn start(s3: &S3, seed: u64, weather: Weather) -> FaultyS3 {
        let port = free_port();
        let listener = TcpListener::bind(("127.0.0.1", port.number())).expect("a free port can be listened on");
        let state = Arc::new(State {
            upstream: s3.port,
            seed,
            weather: Mutex::new(weather),
            next: Mutex::default(),
            hang: Mutex::new(Duration::from_secs(3)),
            requests: AtomicU64::new(0),
            mishaps: AtomicU64::new(0),
            seen: Mutex::default(),
            protects: AtomicBool::new(false),
            ended: AtomicBool::new(false),
        });
        let shared = Arc::clone(&state);
        std::thread::spawn(move || {
            for client in listener.incoming().flatten() {
                if shared.ended.load(Ordering::Relaxed) {
                    return;
                }
                let state = Arc::clone(&shared);
                // A connection that breaks is the client's to notice.
                std::thread::spawn(move || drop(serve(client, &state)));
            }
        });
        FaultyS3 { port, state }
    }

    /// Its address, for clients.
    pub fn endpoint(&self) -> String {
        format!("http://127.0.0.1:{}", self.port)
    }

    /// Changes the weather.
    pub fn set(&self, weather: Weather) {
        *lock(&self.state.weather) = weather;
    }

    /// How long a request hangs.
    pub fn set_hang(&self, hang: Duration) {
        *lock(&self.state.hang) = hang;
    }

    /// Lets the next requests meet these, whatever the weather.
    pub fn next(&self, mishaps: &[Mishap]) {
        lock(&self.state.next).extend(mishaps);
    }

    /// Refuses to remove objects, as stores do that keep them for a time.
    pub fn protect(&self, protects: bool) {
        self.state.protects.store(protects, Ordering::Relaxed);
    }

    /// Requests, and those of them that met a mishap.
    pub fn counts(&self) -> (u64, u64) {
        (self.state.requests.load(Ordering::Relaxed), self.state.mishaps.load(Ordering::Relaxed))
    }

    /// The first lines of all requests so far.
    pub fn seen(&self) -> Vec<String> {
        lock(&self.state.seen).clone()
    }
}

impl Drop for FaultyS3 {
    fn drop(&mut self) {
        self.state.ended.store(true, Ordering::Relaxed);
        // Wakes the thread that waits for connections.
        let _ = TcpStream::connect(("127.0.0.1", self.port.number()));
    }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl State {
    fn mishap(&self, number: u64, share: u8) -> Option<Mishap> {
        if let Some(mishap) = lock(&self.next).pop_front() {
            return Some(mishap);
        }
        let drawn = scatter(self.seed ^ number.wrapping_mul(0x9e37_79b9));
        let pick = usize::try_from((drawn >> 32) % MISHAPS.len() as u64).unwrap_or(0);
        (drawn % 100 < u64::from(share)).then(|| MISHAPS[pick])
    }
}

/// A number that looks like any other, made from one (the finalizer of MurmurHash3).
fn scatter(mut x: u64) -> u64 {
    for factor in [0xff51_afd7_ed55_8ccd_u64, 0xc4ce_b9fe_1a85_ec53] {
        x = (x ^ (x >> 33)).wrapping_mul(factor);
    }
    x ^ (x >> 33)
}

fn serve(mut client: TcpStream, state: &State) -> io::Result<()> {
    let weather = *lock(&state.weather);
    if weather == Weather::Down {
        return client.shutdown(Shutdown::Both);
    }
    let Some((mut head, body)) = read_request(&mut client)? else { return Ok(()) };
    let first = head.lines().next().unwrap_or_default().to_owned();
    lock(&state.seen).push(first.clone());
    let number = state.requests.fetch_add(1, Ordering::Relaxed);
    let (share, pages) = match weather {
        Weather::Flaky(share) => (share, true),
        Weather::Healthy | Weather::Down => (0, false),
    };
    let is_listing = pages && first.starts_with("GET ") && first.contains("list-type=2");
    if is_listing {
        head = head.replacen("list-type=2", &format!("list-type=2&max-keys={PAGE}"), 1);
    }
    if first.starts_with("DELETE ") && state.protects.load(Ordering::Relaxed) {
        return refuse(&mut client);
    }
    let mishap = state.mishap(number, share);
    if mishap.is_some() {
        state.mishaps.fetch_add(1, Ordering::Relaxed);
    }
    match mishap {
        Some(Mishap::Error) => return answer(&mut client, "500 Internal Server Error", "InternalError"),
        Some(Mishap::Busy) => return answer(&mut client, "503 Service Unavailable", "SlowDown"),
        Some(Mishap::Hang) => {
            std::thread::sleep(*lock(&state.hang));
            return client.shutdown(Shutdown::Both);
        }
        Some(Mishap::CutRequest) => {
            let mut server = TcpStream::connect(("127.0.0.1", state.upstream))?;
            server.write_all(head.as_bytes())?;
            server.write_all(&body[..body.len() / 2])?;
            server.shutdown(Shutdown::Both)?;
            return client.shutdown(Shutdown::Both);
        }
        Some(Mishap::DoneThenError | Mishap::DoneThenDropped | Mishap::CutAnswer) | None => {}
    }
    let mut server = TcpStream::connect(("127.0.0.1", state.upstream))?;
    server.write_all(head.as_bytes())?;
    server.write_all(&body)?;
    let mut answered = Vec::new();
    server.read_to_end(&mut answered)?;
    match mishap {
        Some(Mishap::DoneThenError) => answer(&mut client, "500 Internal Server Error", "InternalError"),
        Some(Mishap::DoneThenDropped) => client.shutdown(Shutdown::Both),
        Some(Mishap::CutAnswer) => client.write_all(&answered[..answered.len() / 2]),
        _ => {
            let answered = if is_listing { shuffled(&answered, state.seed ^ number) } else { answered };
            client.write_all(&answered)
        }
    }
}

/// A request's head, changed so that the connection ends with it, and its body. `None`: nothing was asked.
fn read_request(client: &mut TcpStream) -> io::Result<Option<(String, Vec<u8>)>> {
    client.set_read_timeout(Some(Duration::from_secs(60)))?;
    let mut bytes = Vec::new();
    let mut piece = vec![0; 64 << 10];
    let end = loop {
        if let Some(at) = bytes.windows(4).position(|four| four == b"\r\n\r\n") {
            break at + 4;
        }
        match client.read(&mut piece)? {
            0 => return Ok(None),
            length => bytes.extend_from_slice(&piece[..length]),
        }
    };
    let mut body = bytes.split_off(end);
    let text = String::from_utf8_lossy(&bytes).into_owned();
    let mut length = 0;
    let mut head = String::new();
    for line in text.trim_end().split("\r\n") {
        let lower = line.to_ascii_lowercase();
        if let Some(value) = lower.strip_prefix("content-length:") {
            length = value.trim().parse().unwrap_or(0);
        }
        if !lower.starts_with("connection:") {
            head.push_str(line);
            head.push_str("\r\n");
        }
    }
    head.push_str("Connection: close\r\n\r\n");
    while body.len() < length {
        match client.read(&mut piece)? {
            0 => return Ok(None),
            more => body.extend_from_slice(&piece[..more]),
        }
    }
    Ok(Some((head, body)))
}

fn answer(client: &mut TcpStream, status: &str, code: &str) -> io::Result<()> {
    let body = format!("<?xml version=\"1.0\"?><Error><Code>{code}</Code><Message>a bad day</Message></Error>");
    let length = body.len();
    client.write_all(
        format!("HTTP/1.1 {status}\r\nConnection: close\r\nContent-Length: {length}\r\n\r\n{body}").as_bytes(),
    )
}

/// In the words of a real store.
fn refuse(client: &mut TcpStream) -> io::Result<()> {
    let body = "<?xml version=\"1.0\"?><Error><Code>AccessDenied</Code>\
                <Message>Access Denied because object protected by object lock.</Message></Error>";
    let head = format!("HTTP/1.1 403 Forbidden\r\nConnection: close\r\nContent-Length: {}\r\n\r\n", body.len());
    client.write_all(format!("{head}{body}").as_bytes())
}

/// A page of a listing with its entries in another order; its length stays.
fn shuffled(answered: &[u8], seed: u64) -> Vec<u8> {
    let text = String::from_utf8_lossy(answered).into_owned();
    let (Some(from), Some(to)) = (text.find("<Contents>"), text.rfind("</Contents>")) else { return answered.to_vec() };
    let to = to + "</Contents>".len();
    let mut entries: Vec<&str> = text[from..to].split_inclusive("</Contents>").collect();
    let mut drawn = seed;
    for at in (1..entries.len()).rev() {
        drawn = scatter(drawn.wrapping_add(at as u64));
        entries.swap(at, usize::try_from(drawn % (at as u64 + 1)).unwrap_or(0));
    }
    format!("{}{}{}", &text[..from], entries.concat(), &text[to..]).into_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::s3::s3;

    /// The answer to one request through the proxy; empty when there was none.
    fn ask(proxy: &FaultyS3, method: &str, path: &str, body: &str) -> String {
        let Ok(mut stream) = TcpStream::connect(("127.0.0.1", proxy.port.number())) else { return String::new() };
        let length = body.len();
        let request = format!(
            "{method} {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: AWS key:x\r\nContent-Length: {length}\r\n\r\n{body}"
        );
        let mut answer = Vec::new();
        let _ = stream.write_all(request.as_bytes());
        let _ = stream.read_to_end(&mut answer);
        String::from_utf8_lossy(&answer).into_owned()
    }

    #[test]
    fn each_mishap_does_what_it_says() {
        let s3 = s3();
        let proxy = FaultyS3::start(&s3, 1, Weather::Healthy);
        proxy.set_hang(Duration::from_millis(10));
        for (number, mishap) in MISHAPS.into_iter().enumerate() {
            let path = format!("/{}/{number}", s3.bucket);
            proxy.next(&[mishap]);
            let answer = ask(&proxy, "PUT", &path, "content");
            let made = ask(&proxy, "GET", &path, "").ends_with("content");
            let (expected, done) = match mishap {
                Mishap::Error => ("HTTP/1.1 500", false),
                Mishap::Busy => ("HTTP/1.1 503", false),
                Mishap::DoneThenError => ("HTTP/1.1 500", true),
                Mishap::DoneThenDropped => ("", true),
                Mishap::CutRequest | Mishap::Hang => ("", false),
                Mishap::CutAnswer => ("HTTP/1.1 200", true),
            };
            assert!(answer.starts_with(expected) && answer.is_empty() == expected.is_empty(), "{mishap:?}: {answer}");
            assert_eq!(made, done, "{mishap:?}");
        }
        assert_eq!(proxy.counts(), (14, 7));
    }

    #[test]
    fn the_weather_changes_while_it_runs_and_follows_the_seed() {
        let s3 = s3();
        let path = format!("/{}?list-type=2", s3.bucket);
        let run = |seed| -> Vec<bool> {
            let proxy = FaultyS3::start(&s3, seed, Weather::Flaky(50));
            proxy.set_hang(Duration::from_millis(10));
            let good = (0..20).map(|_| ask(&proxy, "GET", &path, "").ends_with("</ListBucketResult>")).collect();
            proxy.set(Weather::Down);
            assert_eq!(ask(&proxy, "GET", &path, ""), "");
            proxy.set(Weather::Healthy);
            assert!(ask(&proxy, "GET", &path, "").starts_with("HTTP/1.1 200"));
            good
        };
        let first = run(3);
        assert!(first.contains(&true) && first.contains(&false));
        assert_eq!(first, run(3), "the same seed gives the same day");
    }
}

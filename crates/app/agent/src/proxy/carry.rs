//! One connection: to the member that is best now, both ways, until it ends or has to move.
//!
//! **Invariant:** nothing is read from the client before a member took the connection. A connection is closed by us only where
//! its member is ill or gone and another is well, or where the proxy ends; then after a grace, and in a quiet moment if there is
//! one soon.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use quorate_plan::peering::{Upstream, is_drained, order};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::net::tcp::{ReadHalf, WriteHalf};
use tokio::sync::Notify;
use tokio_util::task::AbortOnDropHandle;
use tracing::debug;

use super::{Shared, lock};
use crate::serve::{Seat, Stage};

/// How long one member may take to take a connection.
const CONNECT_LIMIT: Duration = Duration::from_secs(1);
/// How long a client is kept waiting until any does.
const TOTAL_LIMIT: Duration = Duration::from_secs(8);
/// Between two rounds.
const ROUND: Duration = Duration::from_millis(100);
/// A member that failed to connect is asked last for so long.
const SUSPECT: Duration = Duration::from_secs(1);
/// How long a connection may stay with a member that is ill or gone: it may be well again in a moment.
pub(super) const GRACE: Duration = Duration::from_secs(3);
/// How long a quiet moment is waited for after that, and what is one.
const QUIET: (Duration, Duration) = (Duration::from_secs(2), Duration::from_millis(200));
/// How long the other way may be silent after one side has nothing more to say: it may be gone, and nobody tells.
const SILENT: Duration = Duration::from_secs(5);
/// Between two looks for one.
const TICK: Duration = Duration::from_millis(50);
/// Of each way: a frame of HTTP/2 is 16 KiB, and a snapshot comes in many.
const BUFFER: usize = 64 << 10;

/// Carries one connection to its end.
pub(super) async fn carry(shared: &Arc<Shared>, client: TcpStream, seat: &Arc<Seat>) {
    let _ = client.set_nodelay(true);
    let Some((server, member)) = connect(shared).await else {
        shared.measures.failed();
        debug!("no member took a connection");
        return;
    };
    let _ = server.set_nodelay(true);
    let _carried = Carried::new(shared, &member);
    let line = Arc::new(Line::default());
    // A task of its own, which wakes for bytes and for nothing else; what is minded beside them is minded here.
    let both = pass_both(Arc::clone(shared), client, server, (Arc::clone(&line), Arc::clone(seat)));
    let mut both = AbortOnDropHandle::new(tokio::spawn(both));
    tokio::select! {
        ended = &mut both => if let Ok(Err(error)) = ended {
            debug!(member = member.name, "a connection broke: {error}");
        },
        () = lingers(&line) => debug!(member = member.name, "a connection was half closed, and silent"),
        () = moved(shared, &member.address, &line) => {
            shared.measures.drained();
            debug!(member = member.name, "a connection was closed: its member is ill or gone, or the proxy ends");
        }
    }
}

/// Finds a member that takes the connection.
async fn connect(shared: &Shared) -> Option<(TcpStream, Upstream)> {
    let begun = Instant::now();
    let mut members = shared.members.subscribe();
    loop {
        let known = members.borrow_and_update().clone();
        for member in candidates(shared, &known) {
            match tokio::time::timeout(CONNECT_LIMIT, TcpStream::connect(&member.address)).await {
                Ok(Ok(server)) => return Some((server, member)),
                Ok(Err(_)) | Err(_) => {
                    lock(&shared.suspects).insert(member.address.clone(), Instant::now());
                    shared.measures.refused(&member.name);
                    shared.trouble.notify_one();
                }
            }
        }
        if begun.elapsed() >= TOTAL_LIMIT {
            return None;
        }
        let _ = tokio::time::timeout(ROUND, members.changed()).await;
    }
}

/// Everyone but ourselves, whom an old list may name, in their order.
fn candidates(shared: &Shared, known: &[Upstream]) -> Vec<Upstream> {
    let own: Vec<String> = shared.wanted.borrow().iter().map(ToString::to_string).collect();
    let mut suspects = lock(&shared.suspects);
    suspects.retain(|_, at| at.elapsed() < SUSPECT);
    let mut members: Vec<Upstream> = known.iter().filter(|member| !own.contains(&member.address)).cloned().collect();
    for member in members.iter_mut().filter(|member| suspects.contains_key(&member.address)) {
        member.healthy = false;
    }
    drop(suspects);
    let carried = lock(&shared.carried);
    order(&members, |member| carried.get(&member.address).copied().unwrap_or(0)).into_iter().cloned().collect()
}

/// Both ways.
async fn pass_both(
    shared: Arc<Shared>,
    mut client: TcpStream,
    mut server: TcpStream,
    (line, seat): (Arc<Line>, Arc<Seat>),
) -> io::Result<()> {
    let ((from_client, to_client), (from_server, to_server)) = (client.split(), server.split());
    tokio::try_join!(
        pass(from_client, to_server, &line, |bytes| {
            // From its first bytes on it is a connection that somebody needs.
            if seat.stage() == Stage::Opening {
                seat.set(Stage::Handling);
            }
            shared.measures.up(bytes);
        }),
        pass(from_server, to_client, &line, |bytes| shared.measures.down(bytes)),
    )
    .map(|_| ())
}

/// One way. A read that does not fill the buffer has emptied the socket, and the next one waits without asking the kernel.
async fn pass(mut from: ReadHalf<'_>, mut to: WriteHalf<'_>, line: &Line, count: impl Fn(u64)) -> io::Result<()> {
    let mut buffer = vec![0_u8; BUFFER];
    loop {
        let length = from.read(&mut buffer).await?;
        line.touch();
        let Some(bytes) = buffer.get(..length).filter(|bytes| !bytes.is_empty()) else {
            // The other way may still have something to say.
            line.half.notify_one();
            return to.shutdown().await;
        };
        to.write_all(bytes).await?;
        count(u64::try_from(length).unwrap_or(0));
    }
}

/// Waits until one side has ended and the other one is silent.
async fn lingers(line: &Line) {
    line.half.notified().await;
    let mut sampled = Sampled::new(line);
    while sampled.quiet(line) < SILENT {
        tokio::time::sleep(SILENT / 5).await;
    }
}

/// Waits until the connection has to move.
async fn moved(shared: &Shared, address: &str, line: &Line) {
    let (mut members, mut wanted) = (shared.members.subscribe(), shared.wanted.subscribe());
    let (mut since, mut sampled): (Option<Instant>, Sampled) = (None, Sampled::new(line));
    loop {
        let leaves = wanted.borrow_and_update().is_empty() || is_drained(&members.borrow_and_update(), address);
        since = leaves.then(|| since.unwrap_or_else(Instant::now));
        let pause = match since.map(|since| since.elapsed()) {
            None => Duration::MAX,
            // Looked at early enough to know at its end whether the moment is a quiet one.
            Some(age) if age + QUIET.1 < GRACE => GRACE - QUIET.1 - age,
            Some(age) => {
                let quiet = sampled.quiet(line) >= QUIET.1;
                if age >= GRACE + QUIET.0 || (age >= GRACE && quiet) {
                    return;
                }
                TICK
            }
        };
        tokio::select! {
            changed = members.changed() => if changed.is_err() { return },
            changed = wanted.changed() => if changed.is_err() { return },
            () = tokio::time::sleep(pause) => {}
        }
    }
}

/// What a connection tells of itself while it carries bytes: as little as can be, since it is told for each piece.
#[derive(Default)]
struct Line {
    /// How many pieces have passed. No clock is asked: whoever wants to know since when nothing passes looks twice.
    pieces: AtomicU64,
    /// One side has nothing more to say.
    half: Notify,
}

impl Line {
    fn touch(&self) {
        // Both ways are one task, so nothing is lost between the two.
        self.pieces.store(self.pieces.load(Ordering::Relaxed).wrapping_add(1), Ordering::Relaxed);
    }
}

/// A line as it was looked at.
struct Sampled {
    pieces: u64,
    at: Instant,
}

impl Sampled {
    fn new(line: &Line) -> Sampled {
        Sampled { pieces: line.pieces.load(Ordering::Relaxed), at: Instant::now() }
    }

    /// For how long nothing has passed, at least: as far as was looked.
    fn quiet(&mut self, line: &Line) -> Duration {
        let now = Sampled::new(line);
        if now.pieces != self.pieces {
            *self = now;
        }
        self.at.elapsed()
    }
}

/// Counts for as long as it lives.
struct Carried<'a> {
    shared: &'a Shared,
    member: &'a Upstream,
}

impl<'a> Carried<'a> {
    fn new(shared: &'a Shared, member: &'a Upstream) -> Carried<'a> {
        *lock(&shared.carried).entry(member.address.clone()).or_default() += 1;
        shared.measures.opened(&member.name);
        Carried { shared, member }
    }
}

impl Drop for Carried<'_> {
    fn drop(&mut self) {
        let mut carried = lock(&self.shared.carried);
        if let Some(count) = carried.get_mut(&self.member.address) {
            *count = count.saturating_sub(1);
            if *count == 0 {
                carried.remove(&self.member.address);
            }
        }
        drop(carried);
        self.shared.measures.closed(&self.member.name);
    }
}

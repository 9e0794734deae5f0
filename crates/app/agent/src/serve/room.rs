//! Decides which connections a listener holds: how many, how many of one address, for how long, and which one ends for a new one.
//!
//! ```text
//!   accepted ─► Opening ─► Header ─► Body ─► Handling ─► Idle ─► Header …
//!               10 s       10 s      15 s    (no limit)  75 s
//! ```
//!
//! **Invariant:** a new connection is accepted as long as any other one waits for its client: the one that has waited longest ends for it,
//! those without a certificate first. A request that is complete is never cut off. So neither silence nor slowness of any
//! number of clients keeps another client out.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;
use tracing::warn;

/// How long a client may take for its handshake.
const OPENING_LIMIT: Duration = Duration::from_secs(10);
/// How long a client may take for the header of a request, from the handshake or from the first byte on.
const HEADER_LIMIT: Duration = Duration::from_secs(10);
/// How long a client may take for the body of a request: a few hundred kilobytes at most.
const BODY_LIMIT: Duration = Duration::from_secs(15);
/// How long a client may take to read an answer or to send its next request; agents close their connections after 60 s.
const IDLE_LIMIT: Duration = Duration::from_secs(75);
/// Between two looks at these limits.
const SWEEP: Duration = Duration::from_secs(1);
/// Between two log lines about too many connections.
const LOGGED: Duration = Duration::from_secs(60);
/// Connections that are about to end, beyond the limit, before no new one is accepted.
const CLOSING_MAX: usize = 32;
/// The bits of the time in the state of a connection; the rest is its stage.
const STAGE_SHIFT: u32 = 56;

/// What a connection is doing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Stage {
    /// The client has not finished its handshake, or has not sent anything.
    Opening,
    /// The header of a request is not complete.
    Header,
    /// The body of a request is not complete.
    Body,
    /// The request is complete, and not answered.
    Handling,
    /// Answered: the client reads the answer, or has nothing to ask.
    Idle,
}

impl Stage {
    const ALL: [Stage; 5] = [Stage::Opening, Stage::Header, Stage::Body, Stage::Handling, Stage::Idle];

    /// How long it may last.
    fn limit(self) -> Option<Duration> {
        match self {
            Stage::Opening => Some(OPENING_LIMIT),
            Stage::Header => Some(HEADER_LIMIT),
            Stage::Body => Some(BODY_LIMIT),
            Stage::Handling => None,
            Stage::Idle => Some(IDLE_LIMIT),
        }
    }

    /// Whether the client is the one that is waited for.
    fn awaits_client(self) -> bool {
        self != Stage::Handling
    }
}

/// How many connections there may be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Limits {
    pub(crate) connections: usize,
    /// Of one address; of IPv6, of one network of 64 bits.
    pub(crate) of_one: usize,
}

/// The connections of a listener.
#[derive(Debug)]
pub(crate) struct Room {
    begun: Instant,
    inner: Mutex<Inner>,
    /// A connection came.
    came: Notify,
    /// A connection went.
    went: Notify,
}

#[derive(Debug, Default)]
struct Inner {
    places: BTreeMap<u64, Arc<Place>>,
    /// How many connections each address has.
    of_one: BTreeMap<IpAddr, Arc<AtomicUsize>>,
    next: u64,
    /// Told to end, and not ended yet.
    closing: usize,
    /// New connections, since that was last logged, for which another one ended, and which got no place.
    crowded: (u64, u64),
}

#[derive(Debug)]
struct Place {
    from: IpAddr,
    /// How many connections this address has.
    of_one: Arc<AtomicUsize>,
    /// The stage, and since when, in milliseconds of the room's clock.
    state: AtomicU64,
    certified: AtomicBool,
    close: CancellationToken,
}

impl Room {
    pub(crate) fn new() -> Arc<Room> {
        Arc::new(Room { begun: Instant::now(), inner: Mutex::default(), came: Notify::new(), went: Notify::new() })
    }

    /// A place for a new connection; another one may end for it. `None`: every connection of this address, or every one at all, is being
    /// answered.
    pub(crate) fn admit(self: &Arc<Room>, from: IpAddr, limits: Limits) -> Option<Seat> {
        let from = block(from);
        let mut inner = self.lock();
        let of_one = Arc::clone(inner.of_one.entry(from).or_default());
        let many = of_one.load(Ordering::Relaxed) >= limits.of_one;
        if many || inner.places.len() >= limits.connections {
            let Some(victim) = inner.longest_waiting(many.then_some(from)) else {
                inner.crowded.1 += 1;
                if of_one.load(Ordering::Relaxed) == 0 {
                    inner.of_one.remove(&from);
                }
                return None;
            };
            inner.crowded.0 += 1;
            inner.end(victim);
        }
        let id = inner.next;
        inner.next += 1;
        of_one.fetch_add(1, Ordering::Relaxed);
        // The one that has just ended may have been the last of this address.
        inner.of_one.insert(from, Arc::clone(&of_one));
        let place = Arc::new(Place {
            from,
            of_one,
            state: AtomicU64::new(self.state(Stage::Opening)),
            certified: AtomicBool::new(false),
            close: CancellationToken::new(),
        });
        inner.places.insert(id, Arc::clone(&place));
        drop(inner);
        self.came.notify_one();
        Some(Seat { room: Arc::clone(self), place, id })
    }

    /// Waits until those that were told to end have ended, but for a few.
    pub(crate) async fn settled(&self) {
        loop {
            let went = self.went.notified();
            if self.lock().closing < CLOSING_MAX {
                return;
            }
            went.await;
        }
    }

    /// Ends connections that are past their limits, for as long as the listener or any of them lives.
    pub(crate) async fn sweep(self: Arc<Room>, at: String, stop: CancellationToken) {
        let mut logged: Option<Instant> = None;
        loop {
            let came = self.came.notified();
            if self.lock().places.is_empty() {
                if stop.run_until_cancelled(came).await.is_none() && self.lock().places.is_empty() {
                    return;
                }
                continue;
            }
            tokio::time::sleep(SWEEP).await;
            self.end_overdue(self.now());
            if logged.is_none_or(|logged| logged.elapsed() > LOGGED) {
                let (ended, refused) = std::mem::take(&mut self.lock().crowded);
                if ended + refused > 0 {
                    warn!(
                        at,
                        ended, refused, "more connections than fit: ended those that waited longest for their clients"
                    );
                    logged = Some(Instant::now());
                }
            }
        }
    }

    fn end_overdue(&self, now: u64) {
        let mut inner = self.lock();
        let overdue = |place: &Place| {
            let (stage, since) = place.stage();
            stage.limit().is_some_and(|limit| now.saturating_sub(since) > millis(limit))
        };
        let ids: Vec<u64> = inner.places.iter().filter(|(_, place)| overdue(place)).map(|(id, _)| *id).collect();
        for id in ids {
            inner.end(id);
        }
    }

    fn now(&self) -> u64 {
        millis(self.begun.elapsed())
    }

    fn state(&self, stage: Stage) -> u64 {
        (stage as u64) << STAGE_SHIFT | self.now()
    }

    /// What is behind the lock is whole after every step.
    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Inner {
    /// Who has waited for its client longest: without a certificate before with one, then of the address that has most.
    fn longest_waiting(&self, of: Option<IpAddr>) -> Option<u64> {
        let candidates = self.places.iter().filter(|(_, place)| of.is_none_or(|from| place.from == from));
        let waiting = candidates.filter_map(|(id, place)| {
            let (stage, since) = place.stage();
            let certified = place.certified.load(Ordering::Relaxed);
            let many = Reverse(place.of_one.load(Ordering::Relaxed));
            stage.awaits_client().then_some((certified, many, since, *id))
        });
        waiting.min().map(|(.., id)| id)
    }

    /// Tells a connection to end. Its place is free at once, its descriptor in a moment.
    fn end(&mut self, id: u64) {
        if let Some(place) = self.remove(id) {
            self.closing += 1;
            place.close.cancel();
        }
    }

    fn remove(&mut self, id: u64) -> Option<Arc<Place>> {
        let place = self.places.remove(&id)?;
        if place.of_one.fetch_sub(1, Ordering::Relaxed) == 1 {
            self.of_one.remove(&place.from);
        }
        Some(place)
    }
}

impl Place {
    fn stage(&self) -> (Stage, u64) {
        let state = self.state.load(Ordering::Relaxed);
        let stage = usize::try_from(state >> STAGE_SHIFT).ok().and_then(|at| Stage::ALL.get(at).copied());
        (stage.unwrap_or(Stage::Opening), state & ((1 << STAGE_SHIFT) - 1))
    }
}

/// The place of one connection, free when this is dropped.
#[derive(Debug)]
pub(crate) struct Seat {
    room: Arc<Room>,
    place: Arc<Place>,
    id: u64,
}

impl Seat {
    /// What the connection does from now on.
    pub(crate) fn set(&self, stage: Stage) {
        self.place.state.store(self.room.state(stage), Ordering::Relaxed);
    }

    /// What it does.
    pub(crate) fn stage(&self) -> Stage {
        self.place.stage().0
    }

    /// The client has shown a certificate that is believed.
    pub(crate) fn certify(&self) {
        self.place.certified.store(true, Ordering::Relaxed);
    }

    /// Waits until the connection has to end.
    pub(crate) async fn closed(&self) {
        self.place.close.cancelled().await;
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        let mut inner = self.room.lock();
        if inner.remove(self.id).is_none() {
            inner.closing = inner.closing.saturating_sub(1);
        }
        drop(inner);
        self.room.went.notify_waiters();
    }
}

/// Addresses that one client may have: of IPv6 it has a whole network.
fn block(from: IpAddr) -> IpAddr {
    match from.to_canonical() {
        IpAddr::V4(ip) => IpAddr::V4(ip),
        IpAddr::V6(ip) => {
            let [a, b, c, d, ..] = ip.segments();
            IpAddr::V6(Ipv6Addr::new(a, b, c, d, 0, 0, 0, 0))
        }
    }
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX >> (64 - STAGE_SHIFT))
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: Limits = Limits { connections: 4, of_one: 2 };

    fn ip(last: u8) -> IpAddr {
        IpAddr::from([10, 0, 0, last])
    }

    fn is_closed(seat: &Seat) -> bool {
        seat.place.close.is_cancelled()
    }

    #[test]
    fn the_connection_that_waits_longest_ends_for_a_new_one_of_its_address() {
        let room = Room::new();
        let (first, second) = (room.admit(ip(1), LIMITS).unwrap(), room.admit(ip(1), LIMITS).unwrap());
        let elsewhere = room.admit(ip(2), LIMITS).unwrap();
        let third = room.admit(ip(1), LIMITS).unwrap();
        assert_eq!([&first, &second, &elsewhere, &third].map(is_closed), [true, false, false, false]);
        drop(first);
        let inner = room.lock();
        assert_eq!((inner.places.len(), inner.closing), (3, 0));
    }

    #[test]
    fn a_full_room_takes_from_the_address_that_has_most() {
        let room = Room::new();
        let lone = room.admit(ip(9), LIMITS).unwrap();
        let many = [1, 1, 2].map(|last| room.admit(ip(last), LIMITS).unwrap());
        let _new = room.admit(ip(3), LIMITS).unwrap();
        assert!(!is_closed(&lone), "it is the oldest, and alone");
        assert_eq!(many.each_ref().map(is_closed), [true, false, false]);
    }

    #[test]
    fn certified_clients_and_complete_requests_stay() {
        let room = Room::new();
        let (certified, other) = (room.admit(ip(1), LIMITS).unwrap(), room.admit(ip(1), LIMITS).unwrap());
        certified.certify();
        let _new = room.admit(ip(1), LIMITS).unwrap();
        assert_eq!([&certified, &other].map(is_closed), [false, true]);

        let room = Room::new();
        let busy: Vec<Seat> = (1..=4).map(|last| room.admit(ip(last), LIMITS).unwrap()).collect();
        for seat in &busy {
            seat.set(Stage::Handling);
        }
        assert!(room.admit(ip(5), LIMITS).is_none());
        busy[2].set(Stage::Idle);
        assert!(room.admit(ip(5), LIMITS).is_some());
        assert_eq!(busy.iter().map(is_closed).collect::<Vec<_>>(), [false, false, true, false]);
    }

    #[test]
    fn every_stage_that_waits_for_the_client_has_a_limit() {
        for stage in Stage::ALL {
            let room = Room::new();
            let seat = room.admit(ip(1), LIMITS).unwrap();
            seat.set(stage);
            assert_eq!(seat.stage(), stage);
            room.end_overdue(room.now() + 5_000);
            assert!(!is_closed(&seat), "{stage:?}");
            room.end_overdue(room.now() + 80_000);
            assert_eq!(is_closed(&seat), stage.awaits_client(), "{stage:?}");
        }
    }

    #[test]
    fn a_network_of_ipv6_is_one_client() {
        let parse = |text: &str| block(text.parse().unwrap());
        assert_eq!(parse("2001:db8:1:2:3::4"), parse("2001:db8:1:2:ffff::"));
        assert_ne!(parse("2001:db8:1:2::"), parse("2001:db8:1:3::"));
        assert_eq!(parse("::ffff:10.0.0.1"), ip(1));
    }
}

//! Takes the ports and what comes in at them, on a thread of its own.
//!
//! **Rule:** a port that somebody holds is asked for again and again, quickly at first: whoever lets go of it is followed within
//! milliseconds.

use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use quorate_faults::Fault;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;
use tracing::{debug, info, warn};

use super::Shared;
use super::carry::carry;
use crate::serve::{self, Limits, Room, carried_max};

/// Between two attempts at a port, at first and for how long.
const AGAIN: (Duration, Duration) = (Duration::from_millis(3), Duration::from_secs(60));
/// And later: nobody is about to let go of it.
const LATER: Duration = Duration::from_millis(100);
/// The part of all connections that one address leaves to the others.
const LEFT_TO_OTHERS: usize = 8;
/// After a connection could not be taken for want of descriptors or memory.
const PAUSE: Duration = Duration::from_millis(50);

/// Begins to work.
pub(super) fn begin(shared: Arc<Shared>) -> Result<(), Fault> {
    let fail = |error| Fault::io("cannot start the proxy", error);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(fail)?;
    let work = move || runtime.block_on(run(shared));
    std::thread::Builder::new().name("proxy".to_owned()).spawn(work).map(|_| ()).map_err(fail)
}

/// Listens where it is wanted.
async fn run(shared: Arc<Shared>) {
    let mut wanted = shared.wanted.subscribe();
    let room = Room::new();
    let mut held: BTreeMap<SocketAddr, CancellationToken> = BTreeMap::new();
    loop {
        let now = wanted.borrow_and_update().clone();
        held.retain(|at, stop| {
            let stays = now.contains(at);
            if !stays {
                stop.cancel();
            }
            stays
        });
        for at in now {
            held.entry(at).or_insert_with(|| {
                let stop = shared.stop.child_token();
                tokio::spawn(listen(Arc::clone(&shared), at, Arc::clone(&room), stop.clone()));
                stop
            });
        }
        tokio::select! {
            changed = wanted.changed() => if changed.is_err() { return },
            () = shared.stop.cancelled() => return,
        }
    }
}

async fn listen(shared: Arc<Shared>, at: SocketAddr, room: Arc<Room>, stop: CancellationToken) {
    let Some(listener) = stop.run_until_cancelled(bind(at)).await else { return };
    info!("the proxy listens at {at}");
    shared.listening.send_modify(|all| all.push(at));
    stop.run_until_cancelled(accept(&shared, &listener, &room)).await;
    // Free before it is told.
    drop(listener);
    shared.listening.send_modify(|all| all.retain(|known| *known != at));
    info!("the proxy does not listen at {at} any more");
}

async fn bind(at: SocketAddr) -> TcpListener {
    let (begun, mut told) = (Instant::now(), false);
    loop {
        match serve::listen(at) {
            Ok(listener) => return listener,
            Err(error) if !told => {
                told = true;
                if error.kind() == ErrorKind::AddrInUse {
                    info!("the proxy waits for {at}: somebody listens there");
                } else {
                    warn!("the proxy cannot listen at {at} yet: {error}");
                }
            }
            Err(_) => {}
        }
        tokio::time::sleep(if begun.elapsed() < AGAIN.1 { AGAIN.0 } else { LATER }).await;
    }
}

async fn accept(shared: &Arc<Shared>, listener: &TcpListener, room: &Arc<Room>) {
    loop {
        room.settled().await;
        match listener.accept().await {
            Ok((client, from)) => {
                let Some(seat) = room.admit(from.ip(), limits()) else {
                    shared.measures.failed();
                    debug!(%from, "a connection was closed: there are too many");
                    continue;
                };
                let (shared, seat) = (Arc::clone(shared), Arc::new(seat));
                tokio::spawn(async move {
                    tokio::select! {
                        biased;
                        () = seat.closed() => debug!("a connection was closed: it carried nothing, and there are too many"),
                        () = carry(&shared, client, &seat) => {}
                    }
                });
            }
            Err(error) => {
                debug!("a connection was not taken: {error}");
                tokio::time::sleep(PAUSE).await;
            }
        }
    }
}

/// Clients keep connections for days that say nothing, on purpose: there is no limit in time. One that has never carried anything ends
/// for a new one where there are too many.
fn limits() -> Limits {
    let connections = carried_max();
    Limits { connections, of_one: connections - connections / LEFT_TO_OTHERS }
}

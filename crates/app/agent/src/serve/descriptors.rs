//! Divides the file descriptors of this process between its listeners and its own work.
//!
//! **Invariant:** connections of clients never take the descriptors that the agent needs to start etcd, to write its files and to
//! query other nodes: the shares of all listeners and of the proxy together stay below the limit of the process minus [`own`].

use std::sync::atomic::{AtomicUsize, Ordering};

use rustix::process::{Resource, getrlimit};

/// What a process without a limit is taken to have.
const UNLIMITED: usize = 1 << 20;
/// Kept for the agent's own work: an idle agent has about 50 open, one that starts etcd and PostgreSQL below 150.
const OWN_MIN: usize = 256;
/// Connections of one listener. Larger clusters than this have other limits; each connection with TLS takes about 50 KiB.
const SHARE_MAX: usize = 512;
/// Connections of one listener in a process with very few descriptors.
const SHARE_MIN: usize = 8;
/// Connections of the proxy. Each has two buffers.
const CARRIED_MAX: usize = 4096;

/// Descriptors that were promised to listeners of this process.
static PROMISED: AtomicUsize = AtomicUsize::new(0);

/// The connections that one listener may hold, for as long as this lives.
#[derive(Debug)]
pub(super) struct Share(usize);

impl Share {
    /// A sixth of what the agent does not keep for its own work: four listeners and the proxy fit into it.
    pub(super) fn take() -> Share {
        let connections = share(limit());
        PROMISED.fetch_add(connections, Ordering::Relaxed);
        Share(connections)
    }

    pub(super) fn connections(&self) -> usize {
        self.0
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        PROMISED.fetch_sub(self.0, Ordering::Relaxed);
    }
}

/// Connections that the proxy may carry, each with a descriptor for the client and one for the member.
pub(crate) fn carried_max() -> usize {
    carried(limit(), PROMISED.load(Ordering::Relaxed))
}

fn limit() -> usize {
    let current = getrlimit(Resource::Nofile).current;
    current.map_or(UNLIMITED, |files| usize::try_from(files).unwrap_or(UNLIMITED))
}

/// What the agent keeps for itself.
fn own(limit: usize) -> usize {
    (limit / 4).max(OWN_MIN.min(limit / 2))
}

fn share(limit: usize) -> usize {
    ((limit - own(limit)) / 6).clamp(SHARE_MIN, SHARE_MAX)
}

fn carried(limit: usize, promised: usize) -> usize {
    (limit.saturating_sub(own(limit) + promised) / 2).clamp(SHARE_MIN, CARRIED_MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The listeners that one agent may have at once: health, agents, enrollment, PostgreSQL.
    const LISTENERS: usize = 4;

    #[test]
    fn own_work_keeps_its_descriptors_whatever_the_limit_is() {
        for limit in [256, 512, 1024, 4096, 65_536, UNLIMITED] {
            let promised = LISTENERS * share(limit);
            let taken = promised + 2 * carried(limit, promised);
            assert!(taken + own(limit) <= limit, "{limit}: {taken} and {}", own(limit));
            assert!(own(limit) >= OWN_MIN.min(limit / 2));
        }
        assert_eq!((share(1024), own(1024)), (128, 256));
        assert_eq!(carried(65_536, LISTENERS * SHARE_MAX), CARRIED_MAX);
    }
}

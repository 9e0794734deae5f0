//! Named points of changes of members, at which a test can have this process end as by SIGKILL, or stop until it is continued.
//!
//! **Rule:** there are none in a release: nobody can stop an agent there by its environment. `make test-faults` builds with the
//! optimisations of a release and with these (the profile `faults`).

/// Names the point.
#[cfg(debug_assertions)]
const VARIABLE: &str = "QUORATE_END_AT";
/// Names the point at which the process stops.
#[cfg(debug_assertions)]
const STOP_VARIABLE: &str = "QUORATE_STOP_AT";

/// Ends here, or stops until it is continued, if that was asked for.
#[cfg(debug_assertions)]
pub(crate) fn point(name: &str) {
    if std::env::var(VARIABLE).is_ok_and(|wanted| wanted == name) {
        // Whoever is killed says nothing and puts nothing in order.
        let _ = rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::KILL);
    }
    if std::env::var(STOP_VARIABLE).is_ok_and(|wanted| wanted == name) {
        let _ = rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::STOP);
    }
}

/// Nothing.
#[cfg(not(debug_assertions))]
pub(crate) fn point(_name: &str) {}

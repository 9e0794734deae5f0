//! `quorate data`: an etcd data dir or snapshot file, offline.

pub(crate) mod accept_empty;
pub(crate) mod defrag;
pub(crate) mod init;
pub(crate) mod inspect;
pub(crate) mod members;
pub(crate) mod reset;
pub(crate) mod restore;
pub(crate) mod verify;

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use quorate_faults::{Code, Exit, Fault};

use crate::printer::Printer;

/// The verbs of `data`.
#[derive(Debug, clap::Subcommand)]
#[command(after_help = "\
Examples:
  quorate data init --data-dir ./n1           found a one-member cluster
  quorate data restore --snapshot snap.db --data-dir ./n1
  quorate data inspect /var/lib/etcd          what is in it
  quorate data verify /var/lib/etcd           whether it is whole")]
pub(crate) enum Verb {
    /// Found a member: make the data dir that etcd starts on
    Init(Box<init::Args>),
    /// Make a member's data dir from a snapshot file
    Restore(Box<restore::Args>),
    /// Write a data dir's database or a snapshot anew, in as few pages as it needs
    Defrag(defrag::Args),
    /// Show what is in a data dir or snapshot file
    Inspect(inspect::Args),
    /// Accept that the data of the only member is lost, so that its newest backup is restored
    AcceptEmpty(accept_empty::Args),
    /// Let a member go: rename its data dir and clear its ledger
    Reset(reset::Args),
    /// Check that a data dir or snapshot file is whole
    Verify(verify::Args),
}

/// Runs one verb.
pub(crate) fn run(verb: Verb, printer: &mut Printer) -> Result<Exit, Fault> {
    match verb {
        Verb::Init(args) => init::run(*args, printer),
        Verb::Restore(args) => restore::run(*args, printer),
        Verb::Defrag(args) => defrag::run(&args, printer),
        Verb::Inspect(args) => inspect::run(args, printer),
        Verb::AcceptEmpty(args) => accept_empty::run(&args, printer),
        Verb::Reset(args) => reset::run(&args, printer),
        Verb::Verify(args) => verify::run(args, printer),
    }
}

/// Threads for reading whole databases: more than a few only wait for memory.
pub(crate) fn workers() -> usize {
    std::thread::available_parallelism().map_or(1, |cores| cores.get().min(8))
}

/// Runs work that counts bytes into `done`, showing progress where it takes a while.
pub(crate) fn watched<T: Send>(
    printer: &Printer,
    what: &str,
    total: u64,
    done: &AtomicU64,
    work: impl FnOnce() -> T + Send,
) -> Result<T, Fault> {
    let mut progress = printer.progress(what, Some(total)).in_bytes();
    let result = std::thread::scope(|scope| {
        let work = scope.spawn(work);
        while !work.is_finished() {
            progress.set(done.load(Ordering::Relaxed).min(total));
            // Short, so that quick work stays quick.
            std::thread::park_timeout(Duration::from_millis(2));
        }
        work.join()
    });
    result.map_err(|_| Fault::new(Code::Internal, format!("{what} came to a halt")))
}

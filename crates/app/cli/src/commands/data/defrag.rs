//! `quorate data defrag`: writes a database anew, without the pages that nothing uses, while etcd is stopped.

use std::path::PathBuf;
use std::sync::atomic::AtomicU64;

use quorate_etcd::defrag::{Defragged, defrag};
use quorate_faults::{Exit, Fault};
use quorate_host::durable::RealDisk;
use serde::Serialize;

use super::{watched, workers};
use crate::printer::Printer;
use crate::render::{Page, Report, bytes};

/// Flags of `data defrag`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  systemctl stop etcd
  quorate data defrag /var/lib/etcd
  systemctl start etcd
  quorate data defrag snap.db

Nothing but the pages changes: the hash over all content is the same before and
after, and is compared before the new file takes the old one's place.")]
pub(crate) struct Args {
    /// A data dir whose etcd is stopped, or a snapshot file
    #[arg(value_name = "DIR|SNAPSHOT")]
    path: PathBuf,
}

/// Defragments.
pub(crate) fn run(args: &Args, printer: &mut Printer) -> Result<Exit, Fault> {
    let progress = AtomicU64::new(0);
    let db = if args.path.is_dir() { args.path.join("member/snap/db") } else { args.path.clone() };
    let total = db.metadata().map_or(0, |meta| meta.len());
    let done =
        watched(printer, "defragmenting", total, &progress, || defrag(&RealDisk, &args.path, workers(), &progress))??;
    printer.report(&Outcome::of(done));
    Ok(Exit::Done)
}

/// What is printed.
#[derive(Serialize)]
struct Outcome {
    file: String,
    bytes_before: u64,
    bytes_after: u64,
    revision: u64,
    hash: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    sha256: Option<String>,
}

impl Outcome {
    fn of(done: Defragged) -> Outcome {
        Outcome {
            file: done.file.display().to_string(),
            bytes_before: done.bytes_before,
            bytes_after: done.bytes_after,
            revision: done.rebuilt.revision,
            hash: done.hash,
            sha256: done.sha256,
        }
    }
}

impl Report for Outcome {
    fn render(&self, page: &mut Page) {
        page.line(format!("defragmented `{}`", self.file));
        page.gap();
        let mut pairs = vec![
            ("size before", bytes(self.bytes_before)),
            ("size now", bytes(self.bytes_after)),
            ("revision", self.revision.to_string()),
            ("content hash", format!("{:08x} ({}), the same before and after", self.hash, self.hash)),
        ];
        if let Some(sha256) = &self.sha256 {
            pairs.push(("SHA-256", sha256.clone()));
        }
        page.pairs(pairs);
    }
}

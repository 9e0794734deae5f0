//! `quorate data inspect`: what is in a data dir or snapshot file, without changing a byte.

use std::path::PathBuf;

use quorate_faults::{Code, Exit, Fault};

use crate::printer::Printer;

/// Flags of `data inspect`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  quorate data inspect /var/lib/etcd
  quorate data inspect backup.db --hash --count
  quorate data inspect /var/lib/etcd --output json")]
pub(crate) struct Args {
    /// A data dir or a snapshot file
    pub(crate) path: PathBuf,

    /// Compute the hashes that etcdutl and etcdctl print [default: for files under 64 MiB]
    #[arg(long, overrides_with = "no_hash")]
    pub(crate) hash: bool,

    /// Do not compute hashes
    #[arg(long)]
    pub(crate) no_hash: bool,

    /// Also count keys, live keys and free pages
    #[arg(long)]
    pub(crate) count: bool,
}

/// Shows it.
pub(crate) fn run(args: Args, _printer: &mut Printer) -> Result<Exit, Fault> {
    Err(Fault::new(Code::Internal, format!("cannot inspect `{}`", args.path.display())))
}

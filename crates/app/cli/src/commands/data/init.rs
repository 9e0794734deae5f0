//! `quorate data init`: founds a member offline.

use std::path::PathBuf;
use std::time::Duration;

use quorate_faults::{Code, Exit, Fault};

use crate::args;
use crate::printer::Printer;

/// Flags of `data init`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  quorate data init --data-dir ./n1
  quorate data init --name n1 --data-dir /var/lib/etcd --token prod-1 \\
      --member n1=https://10.0.0.1:2380 --member n2=https://10.0.0.2:2380 \\
      --member n3=https://10.0.0.3:2380
  quorate data init --name n1 --data-dir /var/lib/etcd --token prod-1 \\
      --source dns-srv:example.com?ssl=true --expect 3 --wait 2m
  quorate data init --data-dir ./n1 --dry-run")]
pub(crate) struct Args {
    /// This member's name in the list
    #[arg(long)]
    pub(crate) name: Option<String>,

    /// The data dir to make, as etcd's --data-dir
    #[arg(long, value_name = "DIR")]
    pub(crate) data_dir: PathBuf,

    /// A separate dir for the WAL, as etcd's --wal-dir
    #[arg(long, value_name = "DIR")]
    pub(crate) wal_dir: Option<PathBuf>,

    /// The cluster's token, as etcd's --initial-cluster-token
    #[arg(long, default_value = "etcd-cluster")]
    pub(crate) token: String,

    /// The etcd that will run on it: 3.4, 3.5, 3.6 or 3.7 [default: a form for all of them]
    #[arg(long, value_name = "VERSION")]
    pub(crate) etcd_version: Option<String>,

    /// A member of the cluster; repeat for each
    #[arg(long = "member", value_name = "NAME=URL[,URL]", conflicts_with = "source")]
    pub(crate) members: Vec<String>,

    /// Where to ask for the member list: static:, file:, dns-srv:, http(s)://, exec:, consul:, etcd:
    #[arg(long, value_name = "URI")]
    pub(crate) source: Option<String>,

    /// How many members the list must have
    #[arg(long, value_name = "N")]
    pub(crate) expect: Option<usize>,

    /// How long to wait for the list to reach --expect
    #[arg(long, value_name = "TIME", default_value = "2m", value_parser = args::duration, requires = "expect")]
    pub(crate) wait: Duration,

    /// Print what would be written, and write nothing
    #[arg(long)]
    pub(crate) dry_run: bool,
}

/// Founds the member.
pub(crate) fn run(args: Args, _printer: &mut Printer) -> Result<Exit, Fault> {
    Err(Fault::new(Code::Internal, format!("cannot found `{}`", args.data_dir.display())))
}

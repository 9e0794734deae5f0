//! `quorate ca init`: makes the authorities of a cluster, once.

use std::path::{Path, PathBuf};

use jiff::Timestamp;
use quorate_faults::{Exit, Fault};
use quorate_pki::{Authority, MadeAuthorities, ensure_authorities, ensure_operator_authority, has_operator_authority};

use super::passphrase::PassphraseArgs;
use crate::printer::Printer;
use crate::render::{Page, Report, for_shell};

/// Flags of `ca init`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  quorate ca init --dir prod-1-ca --token prod-1
  quorate ca init --dir prod-1-ca --token prod-1 --passphrase-file ca.pass

Three authorities for nodes and one for operators, for 10 years. Their keys are
encrypted; whoever has them and the passphrase can make members and operators of
this cluster. What is there is never replaced: run it again to add the one for
operators to a folder of an earlier release.")]
pub(crate) struct Args {
    /// Where to make them; the folder is made too
    #[arg(long, value_name = "DIR")]
    dir: PathBuf,

    /// The cluster's token, as in the cluster file
    #[arg(long)]
    token: String,

    #[command(flatten)]
    passphrase: PassphraseArgs,

    /// Leave the issuing keys unencrypted
    #[arg(long, conflicts_with = "passphrase_file")]
    unencrypted: bool,
}

/// Makes them.
pub(crate) fn run(args: &Args, printer: &mut Printer) -> Result<Exit, Fault> {
    let passphrase = match args.unencrypted || is_whole(&args.dir) {
        true => None,
        false => Some(args.passphrase.get(&format!("the issuing keys of `{}`", args.token), true)?),
    };
    let now = Timestamp::now();
    let made = ensure_authorities(&args.dir, &args.token, passphrase.as_ref(), now)?;
    let operators = ensure_operator_authority(&args.dir, &args.token, passphrase.as_ref(), now)?;
    let made = MadeAuthorities { already: made.already && !operators, ..made };
    printer.report(&Shown(made));
    Ok(Exit::Done)
}

/// Whether nothing is left to be made.
fn is_whole(dir: &Path) -> bool {
    let there = |name: String| dir.join(name).exists();
    let nodes = Authority::ALL.iter().all(|authority| there(authority.cert_file()) && there(authority.key_file()));
    nodes && has_operator_authority(dir)
}

#[derive(serde::Serialize)]
#[serde(transparent)]
struct Shown(MadeAuthorities);

impl Report for Shown {
    fn render(&self, page: &mut Page) {
        let MadeAuthorities { dir, token, already, encrypted } = &self.0;
        let (shown, word) = (dir.display(), for_shell(&dir.display().to_string()));
        let what = if *already { "are there already" } else { "have been made" };
        page.line(format!("the authorities of cluster `{token}` {what}, in `{shown}`"));
        page.gap();
        let keys = match encrypted {
            true => "issuing keys, encrypted: with the passphrase, they make members",
            false => "issuing keys, NOT encrypted: whoever copies them can make members",
        };
        page.pairs([
            ("*-ca.key", format!("secret: {keys}")),
            ("*-ca.crt", "public: what nodes and clients trust".to_owned()),
            ("operators.key", "secret: makes operators; it belongs on no node".to_owned()),
            ("operators.crt", "public: goes to every node with its certificates".to_owned()),
        ]);
        page.line("keep a copy of the folder, and of the passphrase elsewhere: nobody can make them again");
        page.gap();
        page.step("on a node", "quorate ca csr --config cluster.yaml --name n1 > n1.csr");
        page.step("here", format!("quorate ca issue --dir {word} --config cluster.yaml n1.csr > n1.bundle"));
        page.step("on the node", "quorate ca install --config cluster.yaml --name n1 n1.bundle");
        page.step("for yourself", format!("quorate ca issue --dir {word} --role admin --name alice"));
    }
}

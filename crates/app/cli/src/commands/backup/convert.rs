//! `quorate backup convert`: copies a store of another layout into one of ours, object by object.

use quorate_backup::convert::{self, Converted};
use quorate_backup::session::Session;
use quorate_backup::store::Store;
use quorate_backup::write::{self, About};
use quorate_faults::{Code, Exit, Fault};
use serde::Serialize;

use super::{StoreArgs, now_ms};
use crate::printer::Printer;
use crate::render::{Page, Report, bytes};

/// Flags of `backup convert`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  quorate backup convert --store file:///old --to file:///new
  quorate backup verify --store file:///new --drill

Every sound object becomes one of ours with the same revisions and time; the old
store stays as it is. Damaged objects are left out and named.")]
pub(crate) struct Args {
    #[command(flatten)]
    store: StoreArgs,

    /// The store to write, made if it is not there
    #[arg(long, value_name = "URL")]
    to: String,
}

/// Converts it.
pub(crate) fn run(args: &Args, printer: &mut Printer) -> Result<Exit, Fault> {
    let scratch = std::env::temp_dir();
    let session = Session::open(&args.store.store, &scratch)?;
    let to = Store::open(&args.to, true)?;
    let epoch = 1;
    let about = About { epoch, created_ms: now_ms(), ..About::default() };
    write::epoch(&to, &about, 1)?;
    let mut outcome = Outcome {
        store: args.store.store.clone(),
        to: args.to.clone(),
        converted: 0,
        left_out: Vec::new(),
        bytes_before: 0,
        bytes_after: 0,
    };
    let mut progress = printer.progress("converting", Some(session.catalog.objects.len() as u64));
    for (index, object) in session.catalog.objects.iter().enumerate() {
        progress.set(index as u64);
        if !convert::is_foreign(&session.catalog, index) {
            outcome.left_out.push((object.name.clone(), "it is in our layout already".to_owned()));
            continue;
        }
        match convert::object(&session.store, &session.catalog, index, &to, epoch, &scratch)? {
            Converted::Written(manifest) => {
                outcome.converted += 1;
                outcome.bytes_before += object.bytes;
                outcome.bytes_after += manifest.stored.bytes;
            }
            Converted::LeftOut(why) => outcome.left_out.push((object.name.clone(), why)),
        }
    }
    drop(progress);
    for (name, why) in &outcome.left_out {
        printer.warning(Code::ObjectDamaged, &format!("`{name}` was left out: {why}"));
    }
    let whole = outcome.left_out.is_empty();
    printer.report(&outcome);
    Ok(if whole { Exit::Done } else { Exit::CannotMeet })
}

/// What is printed.
#[derive(Serialize)]
struct Outcome {
    store: String,
    to: String,
    converted: usize,
    left_out: Vec<(String, String)>,
    bytes_before: u64,
    bytes_after: u64,
}

impl Report for Outcome {
    fn render(&self, page: &mut Page) {
        let (before, after) = (bytes(self.bytes_before), bytes(self.bytes_after));
        page.line(format!("{} objects of `{}` are in `{}` now", self.converted, self.store, self.to));
        page.line(format!("  {before} before, {after} after"));
        page.gap();
        page.step("check it:", format!("quorate backup verify --store {}", self.to));
    }
}

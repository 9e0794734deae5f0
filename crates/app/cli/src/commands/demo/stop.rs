//! `quorate demo stop`: stops every member; with `--forget` also sets the data aside.

use std::path::{Path, PathBuf};

use jiff::Timestamp;
use jiff::tz::TimeZone;
use quorate_faults::{Exit, Fault};
use quorate_host::durable::{Disk, RealDisk};
use serde::Serialize;

use super::absent;
use super::members::{self, Member};
use super::state::{self, Demo};
use crate::printer::Printer;
use crate::render::{Page, Report};

#[derive(Serialize)]
struct StopReport {
    /// Members that were stopped now.
    stopped: Vec<&'static str>,
    /// Where the data is.
    data: PathBuf,
    /// Whether it was set aside.
    forgotten: bool,
    #[serde(skip)]
    start_again: String,
}

impl Report for StopReport {
    fn render(&self, page: &mut Page) {
        match self.stopped.is_empty() {
            true => page.line("No member was running."),
            false => page.line(format!("Stopped {}.", self.stopped.join(", "))),
        }
        match self.forgotten {
            true => page.line(format!("Set the data aside as {}", self.data.display())),
            false => page.line(format!("The data stays in {}", self.data.display())),
        }
        page.gap();
        page.step("Start again", &self.start_again);
    }
}

/// Stops the members.
pub(super) fn run(dir: &Path, forget: bool, printer: &mut Printer) -> Result<Exit, Fault> {
    let demo = Demo::open(dir)?.ok_or_else(|| absent(dir))?;
    let _lock = state::lock(&demo.dir, dir)?;
    let members = Member::observe_all(&demo)?;
    let progress = printer.progress("waiting for the members to end", None);
    let mut stopped = Vec::new();
    // One after the other: each hands its leadership over while others run.
    for member in &members {
        if members::stop(&demo, member)? {
            stopped.push(member.seat.name);
        }
    }
    drop(progress);
    let data = if forget { set_aside(&demo)? } else { demo.shown.clone() };
    let start_again = demo.command("start").replace("demo start", "demo");
    printer.report(&StopReport { stopped, data, forgotten: forget, start_again });
    Ok(Exit::Done)
}

/// Renames the directory; nothing is deleted.
fn set_aside(demo: &Demo) -> Result<PathBuf, Fault> {
    let time = Timestamp::now().to_zoned(TimeZone::UTC).strftime("%Y%m%dT%H%M%SZ").to_string();
    for attempt in 1_u32.. {
        let suffix = if attempt == 1 { format!(".replaced-{time}") } else { format!(".replaced-{time}-{attempt}") };
        let (real, shown) = (with_suffix(&demo.dir, &suffix), with_suffix(&demo.shown, &suffix));
        match RealDisk.rename_new(&demo.dir, &real) {
            Ok(()) => {
                if let Some(parent) = real.parent() {
                    RealDisk.sync_dir(parent)?;
                }
                return Ok(shown);
            }
            Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists && attempt < 100 => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(demo.shown.clone())
}

fn with_suffix(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.file_name().unwrap_or(path.as_os_str()).to_owned();
    name.push(suffix);
    path.with_file_name(name)
}

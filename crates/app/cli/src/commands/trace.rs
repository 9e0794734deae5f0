//! `quorate trace`: the system calls of a process, by strace, for a limited time.
//!
//! **Invariant:** the tracer never outlives the command, however that ends, so no process stays slow.

mod summary;

use std::ffi::OsStr;
use std::io;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use quorate_faults::{Code, Exit, Fault};
use quorate_host::process::{die_with_us, leave_keys_to_child};
use quorate_plan::spec::duration_text;
use rustix::process::{Pid, Signal, kill_process};

use super::audit;
use super::ps::scan::Place;
use crate::args;
use crate::printer::Printer;

/// How long strace may take to let go of its threads before it is killed, which lets go of them too.
const DETACH_LIMIT: Duration = Duration::from_secs(10);

/// Flags of `trace`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  quorate trace etcd --calls fsync,fdatasync --duration 5s
  quorate trace etcd --summary
  quorate trace etcd --calls %network -- -tt -T
  quorate trace etcd --duration 3s --output json | jq '.calls[0]'

All threads are traced, until the time is over or Ctrl-C. Tracing slows the process down: a
busy leader may lose its leadership. With --output json the calls are counted, not shown.
strace's exit code is passed on; 0 when the time was over.")]
pub(crate) struct Args {
    /// The process: `etcd`, or `n1/etcd` where several members are here
    #[arg(value_name = "PROCESS")]
    process: String,

    #[command(flatten)]
    place: Place,

    /// Only these calls or classes: `fsync,openat`, `%file`, `%network`
    #[arg(long, value_name = "LIST")]
    calls: Option<String>,

    /// At most so long
    #[arg(long, value_name = "TIME", default_value = "30s", value_parser = args::duration)]
    duration: Duration,

    /// Count calls instead of showing them
    #[arg(long)]
    summary: bool,

    /// More arguments for strace
    #[arg(last = true, value_name = "STRACE ARGUMENTS")]
    more: Vec<String>,
}

/// Traces it.
pub(crate) fn run(args: &Args, printer: &mut Printer) -> Result<Exit, Fault> {
    let (process, identity) = args.place.running(&args.process)?;
    let pid = identity.pid;
    let strace = find(std::env::var_os("PATH").as_deref())?;
    may_trace(pid)?;
    let mut words = words(args, pid);
    audit::note("trace", &process, pid, &words)?;
    let limit = duration_text(args.duration);
    let slow = format!("tracing slows `{}/{}` down; it ends after {limit}", process.member, process.name);
    printer.warning(Code::TraceSlows, &slow);
    let counted = printer.is_json().then(tempfile::NamedTempFile::new).transpose();
    let counted = counted.map_err(|error| Fault::io("cannot make a file for the counts", error))?;
    if let Some(file) = &counted {
        words.extend(["-c".to_owned(), "-o".to_owned(), file.path().display().to_string()]);
    }
    let begun = Instant::now();
    let (status, in_time) = trace(&strace, &words, counted.is_none(), args.duration)?;
    if !in_time {
        return Ok(printer.pass_on(status));
    }
    if let Some(file) = counted {
        let text = std::fs::read_to_string(file.path()).map_err(|error| Fault::io("cannot read the counts", error))?;
        let (member, process) = (process.member, process.name);
        let seconds = begun.elapsed().as_secs_f64();
        printer.report(&summary::Summary { member, process, pid, seconds, calls: summary::parse(&text) });
    }
    Ok(Exit::Done)
}

/// What strace is told. Its own words come last, so that they win.
fn words(args: &Args, pid: u32) -> Vec<String> {
    let mut words: Vec<String> = ["-f", "-q", "-yy", "-s", "100"].map(str::to_owned).to_vec();
    if let Some(calls) = &args.calls {
        words.extend(["-e".to_owned(), format!("trace={calls}")]);
    }
    if args.summary {
        words.push("-c".to_owned());
    }
    words.extend(args.more.iter().cloned());
    words.extend(["-p".to_owned(), pid.to_string()]);
    words
}

/// Runs strace. Says how it ended, and whether that was because the time was over or a key was pressed.
fn trace(strace: &Path, words: &[String], shown: bool, limit: Duration) -> Result<(ExitStatus, bool), Fault> {
    let fail = |error| Fault::io("cannot run strace", error);
    let mut command = Command::new(strace);
    command.args(words).stdin(Stdio::null());
    if shown {
        // strace writes to stderr what is our result.
        command.stderr(io::stdout());
    }
    die_with_us(&mut command);
    let mut child = command.spawn().map_err(fail)?;
    leave_keys_to_child();
    let (mut deadline, mut asked) = (Instant::now() + limit, false);
    loop {
        if let Some(status) = child.try_wait().map_err(fail)? {
            let interrupted = status.signal() == Some(Signal::INT.as_raw()) || status.code() == Some(130);
            return Ok((status, asked || interrupted || status.success()));
        }
        if Instant::now() >= deadline {
            if asked {
                child.kill().map_err(fail)?;
            } else {
                interrupt(&child).map_err(fail)?;
            }
            (deadline, asked) = (Instant::now() + DETACH_LIMIT, true);
        }
        std::thread::sleep(Duration::from_millis(10));
    }
}

fn interrupt(child: &Child) -> io::Result<()> {
    // It is our child and not yet buried, so the number is its own.
    Ok(kill_process(Pid::from_child(child), Signal::INT)?)
}

fn find(path: Option<&OsStr>) -> Result<PathBuf, Fault> {
    let dirs = path.into_iter().flat_map(std::env::split_paths);
    dirs.map(|dir| dir.join("strace")).find(|file| file.is_file()).ok_or_else(|| {
        Fault::new(Code::StraceMissing, "cannot find the program `strace` on the PATH")
            .hint("install it (Debian and Ubuntu: `apt install strace`)")
    })
}

/// Asks the kernel, which asks the same of whoever opens the memory of a process as of whoever traces it.
fn may_trace(pid: u32) -> Result<(), Fault> {
    std::fs::File::open(format!("/proc/{pid}/mem")).map(drop).map_err(|error| {
        Fault::new(Code::TraceRefused, format!("the kernel does not let us trace process {pid}"))
            .hint("run it as root; see `quorate explain Q1154`")
            .caused_by(error)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_strace_the_fault_says_how_to_get_it() {
        let nowhere = tempfile::tempdir().unwrap();
        let fault = find(Some(nowhere.path().as_os_str())).unwrap_err();
        assert_eq!(fault.code(), Code::StraceMissing);
        assert!(fault.hint_text().is_some_and(|hint| hint.contains("apt install strace")));
    }

    #[test]
    fn ones_own_process_may_be_traced_and_one_that_is_gone_may_not() {
        may_trace(std::process::id()).unwrap();
        assert_eq!(may_trace(u32::MAX).unwrap_err().code(), Code::TraceRefused);
    }
}

//! `exec:COMMAND`: any program that prints the list. `exec+shell:COMMAND` hands the command to `/bin/sh`.
//!
//! **Invariant:** an answer that is too long or too late leaves nothing running: the program has a process group of its
//! own, which is killed as a whole.

use std::process::{ExitStatus, Stdio};

use quorate_faults::{Fault, Result};
use quorate_plan::roster::parse_list;
use rustix::process::{Pid, Signal, kill_process_group};
use tokio::io::{AsyncRead, AsyncReadExt};
use tokio::process::{Child, Command};

use super::{Asked, BODY_MAX, Source, invalid, silent, too_long, words};

/// How much of what the program wrote to standard error is shown.
const STDERR_TAIL: usize = 2048;

/// A program with its arguments.
pub(super) struct Exec {
    program: String,
    arguments: Vec<String>,
    provenance: String,
}

impl Exec {
    /// Splits the command into words; no shell sees it.
    pub(super) fn open(command: &str) -> Result<Exec> {
        let uri = format!("exec:{command}");
        let mut words = words::split(command)
            .map_err(|why| invalid(&uri, why).hint("close it, or say `exec+shell:` to have a shell read the command"))?
            .into_iter();
        let Some(program) = words.next().filter(|program| !program.is_empty()) else {
            return Err(invalid(&uri, "it names no program").hint("write `exec:PROGRAM ARGUMENT…`"));
        };
        // Arguments may hold what others must not read, so only the program is shown.
        let provenance = format!("exec:{program}");
        Ok(Exec { program, arguments: words.collect(), provenance })
    }

    /// Gives the whole command to a shell, because that was asked for by name.
    pub(super) fn open_shell(command: &str) -> Result<Exec> {
        if command.trim().is_empty() {
            let fault = invalid(&format!("exec+shell:{command}"), "it has no command");
            return Err(fault.hint("write `exec+shell:COMMAND`"));
        }
        let arguments = vec!["-c".to_owned(), command.to_owned()];
        Ok(Exec { program: "/bin/sh".to_owned(), arguments, provenance: "exec+shell:".to_owned() })
    }

    async fn run(&self) -> Result<Vec<u8>> {
        let mut command = Command::new(&self.program);
        command.args(&self.arguments).process_group(0).kill_on_drop(true);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().map_err(|error| self.cannot_start(error))?;
        let mut group = Group::of(&child);
        let (stdout, stderr) = (child.stdout.take(), child.stderr.take());
        // Both at once: a program that fills the one pipe while we read the other would wait for ever.
        let (printed, complaint) = tokio::join!(read_all(stdout, &self.provenance), read_tail(stderr));
        let printed = printed?;
        let status = child.wait().await.map_err(|error| self.cannot_start(error))?;
        // Once it is waited for, the group's number may belong to somebody else.
        group.0 = None;
        match status.success() {
            true => Ok(printed),
            false => Err(self.failed(status, &complaint)),
        }
    }

    fn cannot_start(&self, error: std::io::Error) -> Fault {
        use std::io::ErrorKind::{NotFound, PermissionDenied};
        let (why, hint) = match error.kind() {
            NotFound => {
                ("there is no such program", "give its full path; say `exec+shell:` if a shell must read the command")
            }
            PermissionDenied => ("it may not be run", "make it executable: `chmod +x`"),
            _ => ("it cannot be run", "see the cause"),
        };
        silent(&self.provenance, why).hint(hint).caused_by(error)
    }

    fn failed(&self, status: ExitStatus, complaint: &str) -> Fault {
        let why = match status.code() {
            Some(code) => format!("it ended with exit code {code}"),
            None => "it was killed".to_owned(),
        };
        let fault = silent(&self.provenance, why).hint("run it by hand; it must print the list and end with 0");
        match complaint {
            "" => fault,
            _ => fault.caused_by(format!("it wrote: {complaint}")),
        }
    }
}

impl Source for Exec {
    fn provenance(&self) -> &str {
        &self.provenance
    }

    fn ask(&self) -> Asked<'_> {
        Box::pin(async { Ok(parse_list(&self.run().await?, &self.provenance)?.into()) })
    }
}

/// Kills the process group when dropped before the program was waited for: the program and all that it started.
struct Group(Option<Pid>);

impl Group {
    fn of(child: &Child) -> Group {
        Group(child.id().and_then(|id| i32::try_from(id).ok()).and_then(Pid::from_raw))
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        if let Some(group) = self.0 {
            // They may just have ended by themselves.
            let _ = kill_process_group(group, Signal::KILL);
        }
    }
}

async fn read_all(pipe: Option<impl AsyncRead + Unpin>, provenance: &str) -> Result<Vec<u8>> {
    let mut bytes = Vec::new();
    let Some(pipe) = pipe else { return Ok(bytes) };
    let read = pipe.take(BODY_MAX as u64 + 1).read_to_end(&mut bytes).await;
    read.map_err(|error| silent(provenance, "what it prints cannot be read").caused_by(error))?;
    if bytes.len() > BODY_MAX {
        return Err(too_long(provenance));
    }
    Ok(bytes)
}

/// The last lines, on one line, without control characters.
async fn read_tail(pipe: Option<impl AsyncRead + Unpin>) -> String {
    let mut tail: Vec<u8> = Vec::new();
    let Some(mut pipe) = pipe else { return String::new() };
    let mut chunk = [0_u8; 1024];
    // What cannot be read of a complaint is not worth another complaint.
    while let Ok(count @ 1..) = pipe.read(&mut chunk).await {
        tail.extend(chunk.iter().take(count));
        tail.drain(..tail.len().saturating_sub(STDERR_TAIL));
    }
    let text = String::from_utf8_lossy(&tail);
    let lines: Vec<&str> = text.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
    let last = lines.get(lines.len().saturating_sub(5)..).unwrap_or_default().join("; ");
    last.chars().filter(|c| !c.is_control()).collect()
}

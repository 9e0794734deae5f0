//! etcd as our child: it gets our output and our environment, and does not outlive us.

use std::fmt;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::ExitStatus;

use quorate_faults::{Code, Fault, Result};
use rustix::process::{Pid, Signal, kill_process};
use tokio::process::Command;

/// A running etcd.
#[derive(Debug)]
pub(super) struct Child {
    inner: tokio::process::Child,
    asked: bool,
}

/// How it ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum End {
    /// As it does when asked: by the signal that it was sent, or, as process 1, with code 0.
    Followed,
    /// In any other way.
    Otherwise(ExitStatus),
}

impl fmt::Display for End {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            End::Followed => f.write_str("in order"),
            End::Otherwise(status) => status.fmt(f),
        }
    }
}

impl Child {
    /// Starts it. The kernel ends it when the calling thread ends.
    pub(super) fn start(program: &Path, config_file: &Path) -> Result<Child> {
        let mut command = Command::new(program);
        command.arg("--config-file").arg(config_file).stdin(std::process::Stdio::null());
        quorate_host::process::die_with_us(command.as_std_mut());
        let inner = command.spawn().map_err(|error| {
            Fault::new(Code::ProgramMissing, format!("cannot run `{}`", program.display()))
                .hint("name a file that is etcd for this machine with `--etcd`")
                .caused_by(error)
        })?;
        Ok(Child { inner, asked: false })
    }

    pub(super) fn pid(&self) -> u32 {
        self.inner.id().unwrap_or_default()
    }

    /// Waits for its end. May be dropped and called again.
    pub(super) async fn wait(&mut self) -> Result<End> {
        let status = self.inner.wait().await.map_err(|error| Fault::io("cannot wait for etcd", error))?;
        let followed = status.code() == Some(0) || matches!(status.signal(), Some(2 | 15));
        Ok(if self.asked && followed { End::Followed } else { End::Otherwise(status) })
    }

    /// Asks it to end.
    pub(super) fn terminate(&mut self) {
        self.asked = true;
        // It has not been waited for, so that the number is still its own.
        if let Some(pid) = self.inner.id().and_then(|id| i32::try_from(id).ok()).and_then(Pid::from_raw) {
            let _ = kill_process(pid, Signal::TERM);
        }
    }

    /// Ends it at once.
    pub(super) async fn kill(&mut self) {
        let _ = self.inner.kill().await;
    }
}

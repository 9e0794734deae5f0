//! A terminal that a test sits at: what a program writes to it is read, and what it asks is answered.
//!
//! **Rule:** an answer is typed after its question was seen, as people do; a program may throw away what was typed before.

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{LocalModes, tcgetattr};

use crate::process::wait_until;
use crate::programs::program;

/// A program at a terminal of its own. Dropped, it is killed.
pub struct AtTerminal {
    child: Child,
    ours: File,
    /// The end of the program; gone once that has ended.
    theirs: Option<File>,
    said: Arc<Mutex<Vec<u8>>>,
    reader: Option<JoinHandle<()>>,
}

impl AtTerminal {
    /// Starts `path` with `args`, and with the terminal as the one that it is controlled by.
    pub fn start(path: &Path, args: &[&str]) -> AtTerminal {
        let ours = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC).expect("a terminal");
        grantpt(&ours).and_then(|()| unlockpt(&ours)).expect("one's own terminal");
        let name = ptsname(&ours, Vec::new()).expect("it has a name").into_string().expect("a plain one");
        let theirs = File::options().read(true).write(true).open(name).expect("the other end");
        let end = || Stdio::from(OwnedFd::from(theirs.try_clone().expect("a second handle")));
        let mut command = Command::new(program("setsid"));
        command.args(["--ctty", "--wait"]).arg(path).args(args);
        let child = command.stdin(end()).stdout(end()).stderr(end()).spawn().expect("`setsid` of util-linux runs");
        let ours = File::from(ours);
        let said = Arc::new(Mutex::new(Vec::new()));
        let (mut from, to) = (ours.try_clone().expect("a second handle"), Arc::clone(&said));
        let reader = std::thread::spawn(move || {
            let mut piece = [0; 4096];
            while let Ok(length @ 1..) = from.read(&mut piece) {
                to.lock().unwrap_or_else(PoisonError::into_inner).extend_from_slice(&piece[..length]);
            }
        });
        AtTerminal { child, ours, theirs: Some(theirs), said, reader: Some(reader) }
    }

    /// All that was to be seen so far.
    pub fn seen(&self) -> String {
        String::from_utf8_lossy(&self.said.lock().unwrap_or_else(PoisonError::into_inner)).into_owned()
    }

    /// Waits for a question that was not there at `from`, and types the answer; says how much has been seen by then.
    #[track_caller]
    pub fn answer(&mut self, from: usize, question: &str, answer: &str) -> usize {
        wait_until(&format!("the question `{question}`"), Duration::from_secs(60), || {
            self.seen().get(from..).is_some_and(|new| new.contains(question))
        });
        let seen = self.seen().len();
        self.ours.write_all(format!("{answer}\n").as_bytes()).expect("a terminal takes what is typed");
        seen
    }

    /// Waits for the end, and for all that was written until then. Also says whether the terminal shows what is typed.
    #[track_caller]
    pub fn wait(&mut self) -> (ExitStatus, bool) {
        let mut ended = None;
        wait_until("the program at the terminal ends", Duration::from_secs(60), || {
            ended = self.child.try_wait().expect("one may wait for one's own child");
            ended.is_some()
        });
        let theirs = self.theirs.take().expect("waited for once");
        let echoes = tcgetattr(&theirs).expect("a terminal").local_modes.contains(LocalModes::ECHO);
        // With the last handle of that end there is nothing more to read.
        drop(theirs);
        self.reader.take().map(JoinHandle::join).expect("waited for once").expect("a reader does not panic");
        (ended.expect("it was waited for"), echoes)
    }
}

impl Drop for AtTerminal {
    fn drop(&mut self) {
        // `setsid` forks only where it leads a group already; what it became ends with its terminal otherwise.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

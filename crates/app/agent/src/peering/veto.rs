//! Asks whatever runs on this node whether it objects: a program that the operator put into the node's folder, and services that
//! have registered there.
//!
//! **Rule:** a program that cannot be run, a service that cannot be asked, and whoever does not answer in time, objects.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use tokio::io::{AsyncReadExt, copy, sink};
use tokio::process::Command;

use super::services;

/// The program, in the node's folder.
const PROGRAM: &str = "hooks/veto";
/// How long it may take.
const LIMIT: Duration = Duration::from_secs(10);
/// Between two attempts to run one that is being written.
const AGAIN: Duration = Duration::from_millis(50);
/// Of what it says, the first so many bytes are shown.
const WORDS_MAX: u64 = 400;
/// What it has said is read within this time of its end; a child of its own may hold the pipe for longer.
const LAST_WORDS: Duration = Duration::from_millis(500);

/// Why something objects to `what` (`join`, `detach`, `to-client` or `to-server`) of node `name`; none: nothing does. `dir`: the
/// folder of this node.
pub(crate) async fn veto(dir: &Path, what: &str, name: &str) -> Option<String> {
    let (program, services) = tokio::join!(program(dir, what, name), services::objections(dir, what, name));
    let all: Vec<String> = program.into_iter().chain(services).collect();
    (!all.is_empty()).then(|| all.join("; "))
}

async fn program(dir: &Path, what: &str, name: &str) -> Option<String> {
    let program = dir.join(PROGRAM);
    if !program.exists() {
        return None;
    }
    match tokio::time::timeout(LIMIT, ask(&program, what, name)).await {
        Ok(answer) => answer,
        Err(_) => Some(format!("`{}` does not answer", program.display())),
    }
}

async fn ask(program: &PathBuf, what: &str, name: &str) -> Option<String> {
    let mut command = Command::new(program);
    command.args([what, name]).kill_on_drop(true);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
    let mut child = loop {
        match command.spawn() {
            Ok(child) => break child,
            // Whoever wrote it has not closed it yet; the limit above ends this.
            Err(error) if error.kind() == ErrorKind::ExecutableFileBusy => tokio::time::sleep(AGAIN).await,
            Err(error) => return Some(format!("`{}` cannot be run: {error}", program.display())),
        }
    };
    let (mut said, stdout) = (Vec::new(), child.stdout.take());
    let reading = async {
        let Some(mut stdout) = stdout else { return };
        let _ = (&mut stdout).take(WORDS_MAX).read_to_end(&mut said).await;
        // Who says more is heard to the end: a pipe that closes would end it before its time.
        let _ = copy(&mut stdout, &mut sink()).await;
    };
    let status = {
        let mut reading = std::pin::pin!(reading);
        tokio::select! {
            () = &mut reading => child.wait().await,
            status = child.wait() => {
                let _ = tokio::time::timeout(LAST_WORDS, &mut reading).await;
                status
            }
        }
    };
    match status {
        Ok(status) if status.success() => None,
        Ok(status) => {
            let text = words(&said);
            Some(if text.is_empty() { format!("`{}` ended with {status}", program.display()) } else { text })
        }
        Err(error) => Some(format!("`{}` was lost: {error}", program.display())),
    }
}

/// What was said, in one line.
pub(super) fn words(said: &[u8]) -> String {
    let text: String = String::from_utf8_lossy(said).chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
    text.trim().to_owned()
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    fn hook(text: &str) -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir(dir.path().join("hooks")).unwrap();
        let path = dir.path().join(PROGRAM);
        quorate_etcd::aside::ensure_file(&quorate_host::durable::RealDisk, &path, text.as_bytes()).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o700)).unwrap();
        dir
    }

    #[tokio::test]
    async fn a_program_says_no_in_its_own_words_and_silence_is_no() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(veto(dir.path(), "join", "n2").await, None, "there is none");
        let dir = hook("#!/bin/sh\necho \"$1 of $2: two volumes are here\"\nexit 3\n");
        assert_eq!(veto(dir.path(), "join", "n2").await.as_deref(), Some("join of n2: two volumes are here"));
        let dir = hook("#!/bin/sh\nexit 0\n");
        assert_eq!(veto(dir.path(), "detach", "n2").await, None);
        let dir = hook("#!/does/not/exist\n");
        assert!(veto(dir.path(), "detach", "n2").await.is_some());
    }

    #[tokio::test]
    async fn who_says_much_and_ends_well_does_not_object() {
        let dir = hook(
            "#!/bin/sh\nset -e\ni=0\nwhile [ $i -lt 3000 ]; do echo \"volume $i is elsewhere too, and that is well\"; i=$((i+1)); done\n",
        );
        assert_eq!(veto(dir.path(), "detach", "n2").await, None);
    }
}

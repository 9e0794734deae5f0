//! `file:PATH`: a YAML or JSON list in a file, or on standard input for `file:-`.
//!
//! **Invariant:** a file that blocks (a pipe nobody writes to, a dead network mount) costs a thread, never the time limit.

use std::io::Read;
use std::sync::Mutex;

use quorate_faults::{Fault, Result};
use quorate_plan::roster::parse_list;
use tokio::sync::oneshot;

use super::{Asked, BODY_MAX, Source, invalid, silent, too_long};

/// A file, or standard input.
pub(super) struct File {
    path: String,
    provenance: String,
    /// Standard input can be read once only; its bytes are kept.
    standard_input: Mutex<Option<Vec<u8>>>,
}

impl File {
    pub(super) fn open(path: &str) -> Result<File> {
        let provenance = format!("file:{path}");
        if path.is_empty() {
            return Err(
                invalid(&provenance, "it names no file").hint("write `file:PATH`, or `file:-` for standard input")
            );
        }
        Ok(File { path: path.to_owned(), provenance, standard_input: Mutex::new(None) })
    }

    async fn bytes(&self) -> Result<Vec<u8>> {
        if let Some(kept) = self.kept() {
            return Ok(kept);
        }
        let (sender, receiver) = oneshot::channel();
        let path = self.path.clone();
        // Not the runtime's own threads: it waits for those when it ends, and this one may never return.
        std::thread::spawn(move || {
            // The receiver is gone when the time was up; then nobody wants the bytes.
            let _ = sender.send(read(&path));
        });
        let read = receiver.await.map_err(|_| silent(&self.provenance, "reading it failed"))?;
        let bytes = read.map_err(|error| self.unreadable(error))?;
        if self.path == "-" {
            *self.standard_input.lock().unwrap_or_else(|poisoned| poisoned.into_inner()) = Some(bytes.clone());
        }
        Ok(bytes)
    }

    fn kept(&self) -> Option<Vec<u8>> {
        self.standard_input.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).clone()
    }

    fn unreadable(&self, error: std::io::Error) -> Fault {
        use std::io::ErrorKind::{IsADirectory, NotFound, PermissionDenied};
        let (why, hint) = match error.kind() {
            NotFound => ("there is no such file", "check the path; it is relative to the working directory"),
            PermissionDenied => ("it may not be read", "run as a user who may read it, or change its mode"),
            IsADirectory => ("it is a directory", "name the file inside it"),
            _ => ("it cannot be read", "see the cause"),
        };
        silent(&self.provenance, why).hint(hint).caused_by(error)
    }
}

impl Source for File {
    fn provenance(&self) -> &str {
        &self.provenance
    }

    fn ask(&self) -> Asked<'_> {
        Box::pin(async {
            let bytes = self.bytes().await?;
            if bytes.len() > BODY_MAX {
                return Err(too_long(&self.provenance));
            }
            Ok(parse_list(&bytes, &self.provenance)?.into())
        })
    }

    fn settled(&self) -> bool {
        self.path == "-"
    }
}

/// Reads one byte more than is allowed, so that too much can be told from just enough.
fn read(path: &str) -> std::io::Result<Vec<u8>> {
    let limit = BODY_MAX as u64 + 1;
    let mut bytes = Vec::new();
    match path {
        "-" => std::io::stdin().lock().take(limit).read_to_end(&mut bytes)?,
        _ => std::fs::File::open(path)?.take(limit).read_to_end(&mut bytes)?,
    };
    Ok(bytes)
}

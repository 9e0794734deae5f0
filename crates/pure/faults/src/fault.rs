//! The one error type that reaches an operator.

use crate::Code;

/// Result of anything that can end a command.
pub type Result<T> = std::result::Result<T, Fault>;

/// Why a command could not go on: what was attempted and where, why it failed, and the way out.
///
/// `Display` prints the attempt only; the cause is the error's source and is printed once, by the CLI.
#[derive(Debug)]
pub struct Fault {
    code: Code,
    attempt: String,
    hint: Option<String>,
    cause: Option<Box<dyn std::error::Error + Send + Sync>>,
}

impl Fault {
    /// `attempt` is lower case, without a full stop, with values in backticks: "cannot read snapshot `/b/0.db`".
    pub fn new(code: Code, attempt: impl Into<String>) -> Fault {
        Fault { code, attempt: attempt.into(), hint: None, cause: None }
    }

    /// What the operator can do about it.
    #[must_use]
    pub fn hint(mut self, hint: impl Into<String>) -> Fault {
        self.hint = Some(hint.into());
        self
    }

    /// What went wrong underneath.
    #[must_use]
    pub fn caused_by(mut self, cause: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Fault {
        self.cause = Some(cause.into());
        self
    }

    /// A file operation that failed. Picks the code that fits the error, so that a full disk reads as one. An error that
    /// carries a fault is that fault.
    pub fn io(attempt: impl Into<String>, error: std::io::Error) -> Fault {
        use std::io::ErrorKind;
        let error = match error.downcast::<Fault>() {
            Ok(fault) => return fault,
            Err(error) => error,
        };
        let (code, hint) = match error.kind() {
            ErrorKind::StorageFull | ErrorKind::QuotaExceeded => {
                (Code::DiskFull, "free some space or choose another place; nothing was changed, so run it again")
            }
            ErrorKind::PermissionDenied => {
                (Code::NoPermission, "run as the user that owns the files, or change their owner")
            }
            ErrorKind::ReadOnlyFilesystem => (Code::Io, "the file system is mounted read-only"),
            _ => (Code::Io, "see the cause; nothing that was there before has been changed"),
        };
        Fault::new(code, attempt).hint(hint).caused_by(error)
    }

    /// The fault's code.
    pub fn code(&self) -> Code {
        self.code
    }

    /// The way out, where one is known.
    pub fn hint_text(&self) -> Option<&str> {
        self.hint.as_deref()
    }
}

impl std::fmt::Display for Fault {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.attempt)
    }
}

impl std::error::Error for Fault {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.cause.as_deref().map(|cause| cause as _)
    }
}

//! The exit-code file: one word from the last end to the next start.

use std::path::Path;

use quorate_faults::Result;
use tracing::{info, warn};

use crate::gardener::{Asked, small_file};

/// The longest word that means something is far shorter.
const BYTES_MAX: u64 = 64;

/// How much the sidecar is to look at.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// A quick look, after an end in order.
    Sanity,
    /// Everything.
    Full,
}

impl Mode {
    /// As the request names it.
    pub fn word(self) -> &'static str {
        match self {
            Mode::Sanity => "sanity",
            Mode::Full => "full",
        }
    }

    /// What the file's content asks for.
    fn of(content: Option<&str>) -> Mode {
        match content.map(str::trim) {
            Some("terminated" | "interrupt") => Mode::Sanity,
            Some(_) | None => Mode::Full,
        }
    }
}

/// Reads the file; whatever is not understood means that everything is looked at.
pub(super) fn mode(path: &Path) -> Mode {
    match small_file::read(path, BYTES_MAX) {
        Ok(content) => Mode::of(content.as_deref()),
        Err(error) => {
            warn!(%error, "cannot read `{}`, so everything is validated", path.display());
            Mode::Full
        }
    }
}

/// Removes what an older image left beside it.
pub(super) fn forget_marker(path: &Path) {
    let marker = path.with_file_name("validation_marker");
    if let Err(fault) = small_file::remove(&marker) {
        warn!(code = %fault.code(), "{fault}");
    }
}

/// Etcd is about to run: how the last one ended says nothing any more.
pub(super) fn consume(path: &Path) -> Result<()> {
    small_file::remove(path)
}

/// Etcd has ended, in order.
pub(super) fn record(path: &Path, asked: Asked) -> Result<()> {
    small_file::write(path, asked.word().as_bytes())?;
    info!("etcd ended in order; wrote `{}` to `{}`", asked.word(), path.display());
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_two_words_of_an_end_in_order_spare_the_full_validation() {
        for (content, mode) in [
            (Some("terminated"), Mode::Sanity),
            (Some("interrupt"), Mode::Sanity),
            (Some(" terminated\n"), Mode::Sanity),
            (Some("killed"), Mode::Full),
            (Some("Terminated"), Mode::Full),
            (Some(""), Mode::Full),
            (None, Mode::Full),
        ] {
            assert_eq!(Mode::of(content), mode, "{content:?}");
        }
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(mode(dir.path()), Mode::Full);
    }
}

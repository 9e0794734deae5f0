//! The passphrase of the issuing keys: where it comes from, and that it goes nowhere.
//!
//! **Invariant:** it is never printed, not even for debugging, and its memory is cleared.

use std::path::{Path, PathBuf};

use quorate_faults::{Code, Fault};
use zeroize::Zeroizing;

use crate::files;

/// Names the file that holds the passphrase.
pub const ENVIRONMENT: &str = "QUORATE_CA_PASSPHRASE_FILE";

/// systemd's folder of credentials, and our name in it.
const CREDENTIALS: &str = "CREDENTIALS_DIRECTORY";
const CREDENTIAL: &str = "quorate-ca-passphrase";

/// Fewer characters are guessed before the certificates have ended.
const CHARACTERS_MIN: usize = 8;

/// A passphrase.
#[derive(Clone)]
pub struct Passphrase(Zeroizing<String>);

impl std::fmt::Debug for Passphrase {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Passphrase")
    }
}

impl Passphrase {
    /// This text, without its line end.
    pub fn new(text: Zeroizing<String>) -> Result<Passphrase, Fault> {
        let line = text.lines().next().unwrap_or_default();
        if line.is_empty() {
            return Err(Fault::new(Code::CaPassphrase, "the passphrase is empty").hint("give one, on the first line"));
        }
        Ok(Passphrase(Zeroizing::new(line.to_owned())))
    }

    /// The first line of a file.
    pub fn from_file(path: &Path) -> Result<Passphrase, Fault> {
        let attempt = || format!("cannot read the passphrase file `{}`", path.display());
        let bytes = Zeroizing::new(files::read(path).map_err(|error| Fault::io(attempt(), error))?);
        let text = std::str::from_utf8(&bytes)
            .map_err(|_| Fault::new(Code::CaPassphrase, attempt()).hint("it must be text in UTF-8"))?;
        Passphrase::new(Zeroizing::new(text.to_owned()))
    }

    /// The file that the environment names, or systemd's credential. `None`: neither is there.
    pub fn file_in_environment() -> Option<PathBuf> {
        let named = std::env::var_os(ENVIRONMENT).filter(|value| !value.is_empty()).map(PathBuf::from);
        let credential = || {
            let path = Path::new(&std::env::var_os(CREDENTIALS)?).join(CREDENTIAL);
            path.exists().then_some(path)
        };
        named.or_else(credential)
    }

    /// Whether it may protect new keys.
    pub fn check_strength(&self) -> Result<(), Fault> {
        if self.0.chars().count() >= CHARACTERS_MIN {
            return Ok(());
        }
        Err(Fault::new(Code::CaPassphrase, format!("the passphrase has fewer than {CHARACTERS_MIN} characters"))
            .hint("take a longer one; it is seldom typed"))
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        self.0.as_bytes()
    }
}

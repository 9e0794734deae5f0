//! The ACL token: from a file, and never shown.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Mutex;

use quorate_faults::{Code, Fault, Result};

/// A token is a UUID, or little more.
const TOKEN_BYTES_MAX: usize = 4096;

/// A token and where it came from.
pub(super) struct Token {
    file: Option<PathBuf>,
    text: Mutex<Option<String>>,
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Token").field("file", &self.file).finish_non_exhaustive()
    }
}

impl Token {
    pub(super) fn read(file: Option<&Path>) -> Result<Token> {
        let text = file.map(read_token).transpose()?;
        Ok(Token { file: file.map(Path::to_owned), text: Mutex::new(text) })
    }

    /// The token itself: for the wire only.
    pub(super) fn reveal(&self) -> Option<String> {
        self.text.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).clone()
    }

    /// Reads the file again; says whether there is another token in it now.
    pub(super) fn renewed(&self) -> Result<bool> {
        let Some(file) = &self.file else { return Ok(false) };
        let fresh = Some(read_token(file)?);
        let mut text = self.text.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        let other = *text != fresh;
        *text = fresh;
        Ok(other)
    }
}

fn read_token(path: &Path) -> Result<String> {
    let unread = |error| Fault::io(format!("cannot read token file `{}`", path.display()), error);
    let bytes = std::fs::read(path).map_err(unread)?;
    let text = String::from_utf8(bytes).unwrap_or_default();
    let token = text.trim();
    // A header can carry nothing else, and a token never needs more.
    if token.is_empty() || token.len() > TOKEN_BYTES_MAX || !token.bytes().all(|byte| byte.is_ascii_graphic()) {
        let attempt = format!("cannot use the token in `{}`: it is not one line of visible characters", path.display());
        return Err(Fault::new(Code::CoordinationInvalid, attempt).hint("put the token alone into the file"));
    }
    Ok(token.to_owned())
}

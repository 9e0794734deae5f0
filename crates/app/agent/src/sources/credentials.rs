//! What a source needs to prove who we are: read from files and the environment, never from arguments.
//!
//! **Invariant:** no secret reaches an error, a log line or the provenance.

use std::fmt;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use quorate_faults::{Code, Fault, Result};
use quorate_plan::Warning;

use super::SourceOptions;

/// A value that is never printed.
#[derive(Clone)]
pub(super) struct Secret(String);

impl Secret {
    pub(super) fn new(text: impl Into<String>) -> Secret {
        Secret(text.into())
    }

    /// The value itself: for the wire only.
    pub(super) fn reveal(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(…)")
    }
}

/// Files as they were read, and what should be said about them.
#[derive(Debug, Default)]
pub(super) struct Credentials {
    /// PEM of who signed the server's certificate.
    pub(super) cacert: Option<Vec<u8>>,
    /// PEM of our certificate, and of its key.
    pub(super) identity: Option<(Vec<u8>, Vec<u8>)>,
    /// A bearer or ACL token.
    pub(super) token: Option<Secret>,
    /// User name and password.
    pub(super) user: Option<(String, Secret)>,
    /// Files that others can read.
    pub(super) warnings: Vec<Warning>,
}

impl Credentials {
    /// Reads what the options name.
    pub(super) fn read(options: &SourceOptions) -> Result<Credentials> {
        let mut read = Credentials::default();
        if let Some(path) = &options.cacert {
            read.cacert = Some(read_file("CA certificate", path)?);
        }
        read.identity = match (&options.cert, &options.key) {
            (None, None) => None,
            (Some(cert), Some(key)) => {
                let cert = read_file("client certificate", cert)?;
                Some((cert, read.read_secret_file("client key", key)?))
            }
            (Some(_), None) => return Err(lonely("--source-cert", "--source-key")),
            (None, Some(_)) => return Err(lonely("--source-key", "--source-cert")),
        };
        if let Some(path) = &options.token_file {
            read.token = Some(read.read_token(path)?);
        }
        if let Some(path) = &options.user_file {
            read.user = Some(read.read_user(path)?);
        }
        Ok(read)
    }

    /// Whether there is anything that must not be sent in clear text.
    pub(super) fn has_secret(&self) -> bool {
        self.token.is_some() || self.user.is_some()
    }

    fn read_token(&mut self, path: &Path) -> Result<Secret> {
        let bytes = self.read_secret_file("token", path)?;
        let token = String::from_utf8(bytes).unwrap_or_default();
        let token = token.trim();
        // A header can carry nothing else, and a token never needs more.
        if token.is_empty() || !token.bytes().all(|byte| byte.is_ascii_graphic()) {
            let attempt =
                format!("cannot use the token in `{}`: it is not one line of visible characters", path.display());
            return Err(Fault::new(Code::SourceInvalid, attempt).hint("put the token alone into the file"));
        }
        Ok(Secret::new(token))
    }

    fn read_user(&mut self, path: &Path) -> Result<(String, Secret)> {
        let bytes = self.read_secret_file("user", path)?;
        let text = String::from_utf8(bytes).unwrap_or_default();
        match text.trim_end_matches(['\r', '\n']).split_once(':') {
            Some((user, password)) if !user.is_empty() => Ok((user.to_owned(), Secret::new(password))),
            _ => {
                let attempt = format!("cannot use `{}`: it is not `user:password`", path.display());
                Err(Fault::new(Code::SourceInvalid, attempt).hint("put `user:password` alone into the file"))
            }
        }
    }

    fn read_secret_file(&mut self, what: &str, path: &Path) -> Result<Vec<u8>> {
        let bytes = read_file(what, path)?;
        if let Ok(meta) = std::fs::metadata(path)
            && meta.permissions().mode() & 0o007 != 0
        {
            let path = path.display();
            let text = format!("{what} file `{path}` is open to every user of this host: `chmod 600 {path}`");
            self.warnings.push(Warning::new(Code::SourceSecretOpen, text));
        }
        Ok(bytes)
    }
}

fn read_file(what: &str, path: &Path) -> Result<Vec<u8>> {
    std::fs::read(path).map_err(|error| Fault::io(format!("cannot read {what} file `{}`", path.display()), error))
}

fn lonely(given: &str, missing: &str) -> Fault {
    Fault::new(Code::Usage, format!("`{given}` needs `{missing}`")).hint("give the certificate and its key, or neither")
}

/// A path from the options, or else from the environment.
pub(super) fn or_env(path: &Option<PathBuf>, options: &SourceOptions, variable: &str) -> Option<PathBuf> {
    path.clone().or_else(|| (options.env.0)(variable).map(PathBuf::from))
}

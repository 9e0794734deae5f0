//! How to reach a running etcd: flags that several commands share.
//!
//! **Invariant:** a password is read from a file or the environment, never from the command line, and is never printed.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use quorate_etcd::client::{Credentials, DEFAULT_TIMEOUT, Settings, Tls};
use quorate_faults::{Code, Fault};

use crate::printer::Printer;

/// The environment variable that may hold the password.
const PASSWORD_VARIABLE: &str = "QUORATE_ETCD_PASSWORD";

/// Passwords are far below this.
const PASSWORD_BYTES_MAX: u64 = 4096;

/// Flags of a connection to etcd.
#[derive(Debug, Clone, clap::Args)]
#[command(next_help_heading = "etcd")]
pub(crate) struct EtcdArgs {
    /// Client URLs of the cluster, with commas between them
    #[arg(long, value_name = "URLS", value_delimiter = ',', required = true)]
    endpoints: Vec<String>,

    /// PEM file with our client certificate
    #[arg(long, value_name = "FILE", requires = "key")]
    cert: Option<PathBuf>,

    /// PEM file with its key
    #[arg(long, value_name = "FILE", requires = "cert")]
    key: Option<PathBuf>,

    /// PEM file with the authority that signed etcd's certificates
    #[arg(long, value_name = "FILE")]
    cacert: Option<PathBuf>,

    /// User name, if the cluster asks for one
    // The password follows from --password-file or QUORATE_ETCD_PASSWORD.
    #[arg(long, value_name = "NAME")]
    user: Option<String>,

    /// File with the user's password (or set QUORATE_ETCD_PASSWORD)
    #[arg(long, value_name = "FILE", requires = "user")]
    password_file: Option<PathBuf>,
}

impl EtcdArgs {
    /// The settings of a client; reads the password.
    pub(crate) fn settings(&self, printer: &mut Printer) -> Result<Settings, Fault> {
        let credentials = match &self.user {
            None => None,
            Some(name) if name.contains(':') => {
                return Err(Fault::new(Code::Usage, "cannot take a password on the command line: others can read it")
                    .hint(format!("write `--user NAME` and put the password into a file or {PASSWORD_VARIABLE}")));
            }
            Some(name) => Some(Credentials { name: name.clone(), password: self.password(printer)? }),
        };
        let endpoints = self.endpoints.iter().map(|url| url.trim().to_owned()).filter(|url| !url.is_empty()).collect();
        Ok(Settings {
            endpoints,
            tls: Tls { ca: self.cacert.clone(), cert: self.cert.clone(), key: self.key.clone(), server_name: None },
            credentials,
            timeout: DEFAULT_TIMEOUT,
        })
    }

    fn password(&self, printer: &mut Printer) -> Result<String, Fault> {
        match &self.password_file {
            Some(path) => read_password(path, printer),
            None => std::env::var(PASSWORD_VARIABLE).map_err(|_| {
                Fault::new(Code::Usage, "cannot log in without a password")
                    .hint(format!("give `--password-file FILE`, or set {PASSWORD_VARIABLE}"))
            }),
        }
    }
}

fn read_password(path: &Path, printer: &mut Printer) -> Result<String, Fault> {
    let attempt = || format!("cannot read the password file `{}`", path.display());
    let meta = std::fs::metadata(path).map_err(|error| Fault::io(attempt(), error))?;
    if meta.len() > PASSWORD_BYTES_MAX {
        return Err(Fault::new(Code::Usage, attempt()).hint("it is far too long to be a password"));
    }
    if meta.permissions().mode() & 0o077 != 0 {
        let what = format!("`{}` can be read by others: `chmod 600` it", path.display());
        printer.warning(Code::SourceSecretOpen, &what);
    }
    let text = std::fs::read_to_string(path).map_err(|error| Fault::io(attempt(), error))?;
    Ok(text.trim_end_matches(['\n', '\r']).to_owned())
}

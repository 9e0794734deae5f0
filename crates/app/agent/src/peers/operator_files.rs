//! The certificate and key of whoever runs a command.
//!
//! **Rule:** they are looked up where their owner put them; a folder that is named and has none is an error, never passed over.

use std::path::PathBuf;

use quorate_faults::{Code, Fault};
use quorate_pki::{OPERATOR_CERTIFICATE, OPERATOR_KEY, sign_order};
use quorate_plan::file_order::{FileOrder, SignedFileOrder};

/// Names the folder.
const ENVIRONMENT: &str = "QUORATE_OPERATOR_DIR";

/// The files of an operator.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OperatorFiles {
    /// The certificate.
    pub cert: PathBuf,
    /// Its key.
    pub key: PathBuf,
    /// The agents' authority, for machines that are no nodes.
    pub agents: PathBuf,
}

impl OperatorFiles {
    /// Where the files of an operator of this cluster are kept by default: `~/.config/quorate/TOKEN`.
    pub fn default_dir(token: &str) -> Option<PathBuf> {
        let set = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
        let config = set("XDG_CONFIG_HOME").or_else(|| Some(set("HOME")?.join(".config")))?;
        Some(config.join("quorate").join(token))
    }

    /// Finds them: in `QUORATE_OPERATOR_DIR`, else in the default folder. `None`: whoever runs this is no operator of the cluster.
    pub fn find(token: &str) -> Result<Option<OperatorFiles>, Fault> {
        let named = std::env::var_os(ENVIRONMENT).filter(|value| !value.is_empty()).map(PathBuf::from);
        let is_named = named.is_some();
        let Some(dir) = named.or_else(|| OperatorFiles::default_dir(token)) else { return Ok(None) };
        let files = OperatorFiles {
            cert: dir.join(OPERATOR_CERTIFICATE),
            key: dir.join(OPERATOR_KEY),
            agents: dir.join("agent-ca.crt"),
        };
        match files.cert.exists() {
            true => Ok(Some(files)),
            false if is_named => {
                let what = format!("there is no `{}`, and `{ENVIRONMENT}` names that folder", files.cert.display());
                Err(Fault::new(Code::OperatorNeeded, what)
                    .hint("make it with `quorate ca issue --role admin`, or unset the variable"))
            }
            false => Ok(None),
        }
    }

    /// Signs an order. Reads files: not for async code.
    pub fn sign(&self, order: &FileOrder) -> Result<SignedFileOrder, Fault> {
        sign_order(&self.cert, &self.key, order)
    }
}

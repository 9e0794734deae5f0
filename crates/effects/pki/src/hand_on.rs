//! Hands the issuing keys of a cluster on to another server of it, so that the loss of one machine ends nothing.
//!
//! **Invariant:** only keys that lie open are handed on; one is taken only if it belongs to an authority that is trusted here
//! already, and is written for its owner alone.

use std::collections::BTreeMap;
use std::path::Path;

use aws_lc_rs::digest::{Context, SHA256};
use quorate_faults::{Code, Fault};
use quorate_plan::certificates::Authority;
use rcgen::PublicKeyData;
use serde::{Deserialize, Serialize};
use zeroize::Zeroize;

use crate::authority::{has_issuing_keys, needs_passphrase};
use crate::files::{self, Folder, SECRET};
use crate::keys;
use crate::read::parse_pem;

/// The issuing keys, on their way.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct IssuingKeys(BTreeMap<String, String>);

impl std::fmt::Debug for IssuingKeys {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("IssuingKeys").finish_non_exhaustive()
    }
}

impl Drop for IssuingKeys {
    fn drop(&mut self) {
        self.0.values_mut().for_each(Zeroize::zeroize);
    }
}

/// The issuing keys in `dir`; none, if they are not there or a passphrase holds them.
pub fn read_issuing_keys(dir: &Path) -> Result<Option<IssuingKeys>, Fault> {
    if !has_issuing_keys(dir) || needs_passphrase(dir)? {
        return Ok(None);
    }
    let mut found = IssuingKeys(BTreeMap::new());
    for authority in Authority::ALL {
        let Some(bytes) = files::read_if_there(&dir.join(authority.key_file()))? else { return Ok(None) };
        let Ok(text) = String::from_utf8(bytes) else { return Ok(None) };
        found.0.insert(authority.key_file(), text);
    }
    Ok(Some(found))
}

impl IssuingKeys {
    /// Tells keys apart without telling them: a hash over the public halves.
    pub fn fingerprint(&self) -> Result<String, Fault> {
        let mut hash = Context::new(&SHA256);
        for authority in Authority::ALL {
            let name = authority.key_file();
            let text = self.0.get(&name).map(String::as_bytes).unwrap_or_default();
            hash.update(&keys::decode(text, Path::new(&name), None)?.subject_public_key_info());
        }
        Ok(hash.finish().as_ref().iter().map(|byte| format!("{byte:02x}")).collect())
    }
}

/// Takes the issuing keys in `dir` away, which are those that `held` elsewhere: others that came meanwhile stay. Returns whether
/// some were there.
pub fn ensure_no_issuing_keys(dir: &Path, held: &str) -> Result<bool, Fault> {
    let folder = Folder::open(dir, 0o700)?;
    let same = match read_issuing_keys(dir)? {
        Some(keys) => keys.fingerprint()? == held,
        // Some are left where a removal was cut off; what is not whole signs nothing.
        None => !needs_passphrase(dir)?,
    };
    let mut found = false;
    for authority in Authority::ALL.iter().filter(|_| same) {
        let name = authority.key_file();
        found |= folder.at(&name).exists();
        folder.drop_copy(&name)?;
    }
    Ok(found)
}

/// Puts the issuing keys into `dir`, beside the authorities that they belong to.
pub fn ensure_issuing_keys(dir: &Path, handed: &IssuingKeys) -> Result<(), Fault> {
    let refused = |what: &str| {
        Fault::new(Code::CaOther, format!("the issuing keys that were handed on {what}"))
            .hint("nothing was written; see who answers behind the other servers' addresses")
    };
    for authority in Authority::ALL {
        let text = handed.0.get(&authority.key_file()).ok_or_else(|| refused("are not complete"))?;
        let key = keys::decode(text.as_bytes(), &dir.join(authority.key_file()), None)?;
        let trusted = files::read_if_there(&dir.join(authority.cert_file()))?.unwrap_or_default();
        let trusted = parse_pem(&trusted).unwrap_or_default();
        if !trusted.iter().any(|one| one.public_key == key.subject_public_key_info()) {
            return Err(refused("belong to no authority that is trusted here"));
        }
    }
    let folder = Folder::open(dir, 0o700)?;
    for authority in Authority::ALL {
        let text = handed.0.get(&authority.key_file()).map(String::as_bytes).unwrap_or_default();
        folder.write(&authority.key_file(), text, SECRET)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use jiff::Timestamp;

    use super::*;
    use crate::{Authorities, Passphrase, ensure_authorities};

    #[test]
    fn keys_are_handed_on_to_who_trusts_their_authorities_and_to_nobody_else() {
        let (first, second, stranger) =
            (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let now = Timestamp::now();
        ensure_authorities(first.path(), "t", None, now).unwrap();
        ensure_authorities(stranger.path(), "t", None, now).unwrap();
        assert_eq!(read_issuing_keys(second.path()).unwrap(), None);
        let folder = Folder::open(second.path(), 0o700).unwrap();
        for authority in Authority::ALL {
            let bytes = std::fs::read(first.path().join(authority.cert_file())).unwrap();
            folder.write(&authority.cert_file(), &bytes, files::PUBLIC).unwrap();
        }
        drop(folder);
        let foreign = read_issuing_keys(stranger.path()).unwrap().unwrap();
        assert_eq!(ensure_issuing_keys(second.path(), &foreign).unwrap_err().code(), Code::CaOther);
        assert!(!has_issuing_keys(second.path()), "nothing was written");
        let ours = read_issuing_keys(first.path()).unwrap().unwrap();
        assert!(!format!("{ours:?}").contains("PRIVATE"));
        ensure_issuing_keys(second.path(), &ours).unwrap();
        assert_eq!(Authorities::open(second.path(), None).unwrap().token(), "t");
        for authority in Authority::ALL {
            let mode = second.path().join(authority.key_file()).metadata().unwrap().permissions().mode();
            assert_eq!(mode & 0o777, 0o600);
        }
    }

    #[test]
    fn keys_are_taken_away_where_the_very_same_are_held_elsewhere() {
        let (dir, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        for dir in [&dir, &other] {
            ensure_authorities(dir.path(), "t", None, Timestamp::now()).unwrap();
        }
        let print = |dir: &Path| read_issuing_keys(dir).unwrap().unwrap().fingerprint().unwrap();
        let ours = print(dir.path());
        assert!(!ensure_no_issuing_keys(dir.path(), &print(other.path())).unwrap());
        assert_eq!(print(dir.path()), ours, "other keys are no reason");
        assert!(ensure_no_issuing_keys(dir.path(), &ours).unwrap());
        let left: Vec<_> = std::fs::read_dir(dir.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        assert!(
            !has_issuing_keys(dir.path()) && left.iter().all(|name| !name.to_string_lossy().contains("key")),
            "{left:?}"
        );
        assert!(!ensure_no_issuing_keys(dir.path(), &ours).unwrap(), "twice is once");
        assert!(dir.path().join(Authority::Peer.cert_file()).exists(), "who is trusted stays");
    }

    #[test]
    fn keys_behind_a_passphrase_stay_where_they_are() {
        let dir = tempfile::tempdir().unwrap();
        let passphrase = Passphrase::new("a long enough passphrase of ours".to_owned().into()).unwrap();
        ensure_authorities(dir.path(), "t", Some(&passphrase), Timestamp::now()).unwrap();
        assert_eq!(read_issuing_keys(dir.path()).unwrap(), None);
    }
}

//! A folder of authorities and folders of nodes, for one test.
#![allow(dead_code, reason = "every test uses some of it")]

use std::path::{Path, PathBuf};
use std::process::Command;

use jiff::{SignedDuration, Timestamp};
use quorate_pki::{
    Authorities, Installed, Keys, NodeNames, Passphrase, Policy, SignedBundle, ensure_authorities, ensure_installed,
    ensure_requests, issue,
};

pub(crate) const TOKEN: &str = "prod-1";

pub(crate) fn passphrase() -> Passphrase {
    Passphrase::new(String::from("correct horse battery\n").into()).unwrap()
}

pub(crate) fn days(days: i64) -> SignedDuration {
    SignedDuration::from_hours(24 * days)
}

pub(crate) fn names(name: &str) -> NodeNames {
    NodeNames::new(TOKEN, name, ["127.0.0.1", "node.example"]).unwrap()
}

/// Authorities whose keys are in the clear, since opening encrypted ones takes its time on purpose.
pub(crate) struct Place {
    pub(crate) dir: tempfile::TempDir,
    /// When all of it was begun.
    pub(crate) now: Timestamp,
}

impl Place {
    pub(crate) fn new() -> Place {
        Place::began(Timestamp::now())
    }

    /// Authorities that were made at another time.
    pub(crate) fn began(now: Timestamp) -> Place {
        let place = Place { dir: tempfile::tempdir().unwrap(), now };
        ensure_authorities(&place.ca(), TOKEN, None, now).unwrap();
        place
    }

    pub(crate) fn ca(&self) -> PathBuf {
        self.dir.path().join("ca")
    }

    pub(crate) fn node(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    pub(crate) fn sign(&self, name: &str, which: Keys, at: Timestamp) -> SignedBundle {
        let names = names(name);
        let asked = ensure_requests(&self.node(name), &names, which).unwrap();
        let authorities = Authorities::open(&self.ca(), None).unwrap();
        issue(&authorities, &asked.bundle, &Policy { days: 90, allowed: Some(&names) }, at).unwrap()
    }

    /// Keys, requests, certificates, in place.
    pub(crate) fn install(&self, name: &str, at: Timestamp) -> Installed {
        let signed = self.sign(name, Keys::Keep, at);
        ensure_installed(&self.node(name), &names(name), &signed, at).unwrap()
    }
}

pub(crate) fn read(path: &Path) -> String {
    std::fs::read_to_string(path).unwrap()
}

pub(crate) fn put(path: &Path, text: &str) {
    use std::io::Write;
    std::fs::File::create(path).unwrap().write_all(text.as_bytes()).unwrap();
}

/// Runs `openssl`; the words of a failure are the error.
pub(crate) fn openssl(words: &[&str]) -> Result<String, String> {
    let output = Command::new("openssl").args(words).output().expect("`openssl` is missing: run `make tools`");
    let said = String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
    if output.status.success() { Ok(said) } else { Err(said) }
}

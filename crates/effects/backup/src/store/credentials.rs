//! Where a store's credentials come from, and whether the files that hold them have changed.
//!
//! **Rule:** a file is stamped before it is read, so that a change in between is noticed later. A file that is gone, or
//! that lacks what it held, is being replaced: what was read of it before goes on to count.

use std::io::Read;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use quorate_faults::{Code, Fault, Result};

pub(super) type Environment = Vec<(String, String)>;

/// Variables whose values no text may carry. Each may also be given as a file: its name with `_FILE` behind it.
const SECRETS: [&str; 14] = [
    "AWS_SECRET_ACCESS_KEY",
    "AWS_SESSION_TOKEN",
    "AWS_TOKEN",
    "AZURE_CLIENT_SECRET",
    "AZURE_STORAGE_ACCESS_KEY",
    "AZURE_STORAGE_ACCOUNT_KEY",
    "AZURE_STORAGE_CLIENT_SECRET",
    "AZURE_STORAGE_KEY",
    "AZURE_STORAGE_MASTER_KEY",
    "AZURE_STORAGE_SAS_KEY",
    "AZURE_STORAGE_SAS_TOKEN",
    "AZURE_STORAGE_TOKEN",
    "GOOGLE_BEARER_TOKEN",
    "GOOGLE_SERVICE_ACCOUNT_KEY",
];

/// What changes together with a secret, and may be given as a file too.
const BESIDE_SECRETS: [&str; 3] = ["AWS_ACCESS_KEY_ID", "AZURE_STORAGE_ACCOUNT", "AZURE_STORAGE_ACCOUNT_NAME"];

/// Files that the clients of a cloud read themselves, once.
const READ_BELOW: [&str; 3] =
    ["GOOGLE_APPLICATION_CREDENTIALS", "GOOGLE_SERVICE_ACCOUNT", "GOOGLE_SERVICE_ACCOUNT_PATH"];

/// The longest file with credentials; those with many profiles are a few KiB.
const FILE_MAX: u64 = 256 << 10;

/// What the variables and the files that they name say.
#[derive(Clone)]
pub(super) struct Given {
    /// All variables, those from files included.
    pub(super) environment: Environment,
    /// Names of those that came from files.
    pub(super) from_files: Vec<String>,
    files: Vec<(PathBuf, Option<Stamp>)>,
}

/// What changes when a file is written or replaced.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Stamp {
    place: (u64, u64),
    bytes: u64,
    written: (i64, i64),
    changed: (i64, i64),
}

/// Reads the files that the variables name.
pub(super) fn read(variables: &Environment) -> Result<Given> {
    let mut given = Given { environment: variables.clone(), from_files: Vec::new(), files: Vec::new() };
    for name in SECRETS.iter().chain(&BESIDE_SECRETS) {
        let named = format!("{name}_FILE");
        let Some(place) = get(variables, &named).map(str::to_owned) else { continue };
        let value = given.value(&named, &place)?;
        given.set(name, value);
    }
    if let Some((path, profile_name)) = shared_file(&given.environment) {
        given.stamp(&path);
        let text = small(&path).unwrap_or_default();
        for (name, value) in profile(&text, &profile_name) {
            given.set(&name, value);
        }
    }
    let below = READ_BELOW.iter().filter_map(|name| get(variables, name)).map(PathBuf::from);
    let known =
        get(variables, "HOME").map(|home| Path::new(home).join(".config/gcloud/application_default_credentials.json"));
    for path in below.chain(known).collect::<Vec<_>>() {
        given.stamp(&path);
    }
    Ok(given)
}

impl Given {
    /// Whether a file has other content than when it was read.
    pub(super) fn is_outdated(&self) -> bool {
        self.files.iter().any(|(path, then)| stamp(path).is_some_and(|now| Some(now) != *then))
    }

    /// Whether all is there that was there before.
    pub(super) fn replaces(&self, before: &Given) -> bool {
        before.from_files.iter().all(|name| self.from_files.contains(name))
    }

    /// Values that no text may carry. Shorter ones would blot out ordinary words.
    pub(super) fn secrets(&self) -> Vec<String> {
        let secret = |name: &str| SECRETS.contains(&name);
        let all = self.environment.iter().filter(|(name, value)| secret(name) && value.len() >= 6);
        all.map(|(_, value)| value.clone()).collect()
    }

    fn stamp(&mut self, path: &Path) {
        self.files.push((path.to_owned(), stamp(path)));
    }

    fn set(&mut self, name: &str, value: String) {
        self.environment.retain(|(known, _)| known != name);
        self.environment.push((name.to_owned(), value));
        self.from_files.push(name.to_owned());
    }

    /// The content of a file, or of `PATH#KEY` the text of one key of the JSON object in it.
    fn value(&mut self, named: &str, place: &str) -> Result<String> {
        let (path, key) = match place.rsplit_once('#') {
            Some((path, key)) => (path, Some(key)),
            None => (place, None),
        };
        self.stamp(Path::new(path));
        let fault = |why: &str| {
            Fault::new(Code::StoreInvalid, format!("cannot read the credentials in `{path}`, which {named} names"))
                .hint("write the value alone into the file, or name one key of a JSON object as PATH#KEY")
                .caused_by(why)
        };
        let text = small(Path::new(path)).map_err(|error| fault(&error.to_string()))?;
        let value = match key {
            None => text.trim().to_owned(),
            Some(key) => {
                // What the reader of JSON has to say may hold what it read.
                let object: serde_json::Value = serde_json::from_str(&text).map_err(|_| fault("it is not JSON"))?;
                let value = object.get(key).and_then(serde_json::Value::as_str);
                value.ok_or_else(|| fault("it has no such key with a text"))?.trim().to_owned()
            }
        };
        if value.is_empty() { Err(fault("there is nothing in it")) } else { Ok(value) }
    }
}

fn get<'e>(environment: &'e Environment, name: &str) -> Option<&'e str> {
    environment.iter().find(|(key, value)| key == name && !value.is_empty()).map(|(_, value)| value.as_str())
}

fn stamp(path: &Path) -> Option<Stamp> {
    let meta = std::fs::metadata(path).ok()?;
    Some(Stamp {
        place: (meta.dev(), meta.ino()),
        bytes: meta.size(),
        written: (meta.mtime(), meta.mtime_nsec()),
        changed: (meta.ctime(), meta.ctime_nsec()),
    })
}

fn small(path: &Path) -> std::io::Result<String> {
    if !std::fs::metadata(path)?.is_file() {
        return Err(std::io::Error::other("it is not a file"));
    }
    let mut text = String::new();
    std::fs::File::open(path)?.take(FILE_MAX).read_to_string(&mut text)?;
    Ok(text)
}

/// The file that the AWS tools write, and the profile in it that counts, if the environment names no other way to get keys.
fn shared_file(environment: &Environment) -> Option<(PathBuf, String)> {
    let elsewhere = [
        "AWS_ACCESS_KEY_ID",
        "AWS_WEB_IDENTITY_TOKEN_FILE",
        "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI",
        "AWS_CONTAINER_CREDENTIALS_FULL_URI",
        "AWS_SKIP_SIGNATURE",
    ];
    if elsewhere.iter().any(|name| get(environment, name).is_some()) {
        return None;
    }
    let path = match (get(environment, "AWS_SHARED_CREDENTIALS_FILE"), get(environment, "HOME")) {
        (Some(path), _) => PathBuf::from(path),
        (None, Some(home)) => Path::new(home).join(".aws/credentials"),
        (None, None) => return None,
    };
    Some((path, get(environment, "AWS_PROFILE").unwrap_or("default").to_owned()))
}

/// The keys of one `[profile]` of that file.
fn profile(text: &str, wanted: &str) -> Environment {
    let mut inside = false;
    let mut found = Vec::new();
    for line in text.lines().map(str::trim) {
        if let Some(name) = line.strip_prefix('[').and_then(|line| line.strip_suffix(']')) {
            inside = name.trim() == wanted;
        } else if let Some((key, value)) = line.split_once('=').filter(|_| inside) {
            let key = key.trim().to_ascii_uppercase();
            if ["AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN"].contains(&key.as_str()) {
                found.push((key, value.trim().to_owned()));
            }
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pairs(list: &[(&str, &str)]) -> Environment {
        list.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
    }

    fn write(path: &Path, text: &str) {
        #[expect(clippy::disallowed_methods, reason = "a test's own file")]
        std::fs::write(path, text).unwrap();
    }

    #[test]
    fn a_profile_gives_its_own_keys_only() {
        let text =
            "[default]\naws_access_key_id = A\naws_secret_access_key=B\n\n[other]\nregion = x\naws_access_key_id=C\n";
        assert_eq!(profile(text, "default"), pairs(&[("AWS_ACCESS_KEY_ID", "A"), ("AWS_SECRET_ACCESS_KEY", "B")]));
        assert_eq!(profile(text, "other"), pairs(&[("AWS_ACCESS_KEY_ID", "C")]));
        assert_eq!(profile(text, "none"), pairs(&[]));
    }

    #[test]
    fn a_file_that_was_written_again_is_noticed_and_one_that_is_gone_or_cut_is_not_believed() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("credentials");
        let variables = pairs(&[("AWS_SHARED_CREDENTIALS_FILE", path.to_str().unwrap())]);
        write(&path, "[default]\naws_access_key_id = A\naws_secret_access_key = first-secret\n");
        let first = read(&variables).unwrap();
        assert!(!first.is_outdated());
        assert_eq!(first.secrets(), ["first-secret"]);
        write(&path, "[default]\naws_acc");
        assert!(first.is_outdated());
        assert!(!read(&variables).unwrap().replaces(&first), "half a file replaces nothing");
        write(&path, "[default]\naws_access_key_id = B\naws_secret_access_key = other-secret\n");
        let second = read(&variables).unwrap();
        assert!(second.replaces(&first));
        assert_eq!(get(&second.environment, "AWS_ACCESS_KEY_ID"), Some("B"));
        std::fs::remove_file(&path).unwrap();
        assert!(!second.is_outdated(), "what is gone comes back, or is not missed");
    }

    #[test]
    fn a_secret_may_stand_in_a_file_of_its_own_or_in_a_key_of_json() {
        let dir = tempfile::tempdir().unwrap();
        let (alone, json) = (dir.path().join("secret"), dir.path().join("all.json"));
        write(&alone, "hidden-one\n");
        write(&json, "{\"storageKey\":\"hidden-two\",\"number\":7}");
        let key = |key: &str| format!("{}#{key}", json.display());
        let (stored, number) = (key("storageKey"), key("number"));
        let variables = pairs(&[
            ("AWS_SECRET_ACCESS_KEY", "not-this-one"),
            ("AWS_SECRET_ACCESS_KEY_FILE", alone.to_str().unwrap()),
            ("AZURE_STORAGE_ACCOUNT_KEY_FILE", &stored),
            ("AWS_WEB_IDENTITY_TOKEN_FILE", "/not/ours/to/read"),
        ]);
        let given = read(&variables).unwrap();
        assert_eq!(get(&given.environment, "AWS_SECRET_ACCESS_KEY"), Some("hidden-one"));
        assert_eq!(get(&given.environment, "AZURE_STORAGE_ACCOUNT_KEY"), Some("hidden-two"));
        for wrong in [number.as_str(), "/no/such/file", dir.path().to_str().unwrap()] {
            let fault = read(&pairs(&[("AZURE_STORAGE_KEY_FILE", wrong)])).err().unwrap();
            assert_eq!(fault.code(), Code::StoreInvalid);
            assert!(!format!("{fault:?}").contains("hidden"), "{fault:?}");
        }
    }
}

//! Gardener's names for stores and its files with credentials, as our URLs and the variables that stores read.
//!
//! **Invariant:** a credential stays in its file: stores are told where it is, and read it again when it changes.

use std::collections::BTreeMap;
use std::path::Path;

use quorate_faults::{Code, Fault, Result};

use crate::gardener::flags::Given;
use crate::gardener::small_file;

/// The longest credential that is read.
const BYTES_MAX: u64 = 64 << 10;

/// A store.
#[derive(Clone, PartialEq, Eq)]
pub struct Provided {
    /// Its URL.
    pub url: String,
    /// The path in it before `v2`.
    pub root: String,
    /// Variables that it needs and that are not set yet. Credentials are named by their files.
    pub environment: Vec<(String, String)>,
    /// What an operator should know.
    pub notes: Vec<String>,
}

impl std::fmt::Debug for Provided {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // Endpoints may be nobody's business.
        f.debug_struct("Provided").field("url", &self.url).finish_non_exhaustive()
    }
}

/// The store that the flags name; `None`: none is named.
pub(super) fn of(given: &Given, environment: &impl Fn(&str) -> Option<String>) -> Result<Option<Provided>> {
    let Some(provider) = given.filled("storage-provider") else { return Ok(None) };
    let container = given.filled("store-container").map(str::to_owned).or_else(|| environment("STORAGE_CONTAINER"));
    let container = container.ok_or_else(|| {
        wrong("cannot use a store without a container").hint("give `--store-container`, or set STORAGE_CONTAINER")
    })?;
    let root = given.text("store-prefix").unwrap_or_default().trim_matches('/').to_owned();
    let endpoint = given.filled("store-endpoint-override");
    let (url, files) = match provider {
        "S3" => (format!("s3://{container}/{root}"), Some(&S3)),
        "ABS" => (format!("az://{container}/{root}"), Some(&ABS)),
        "GCS" => (format!("gs://{container}/{root}"), None),
        "Local" => (local(&container, &root, environment)?, None),
        other => {
            return Err(wrong(format!("cannot use the storage provider `{other}`"))
                .hint("S3, ABS, GCS and Local are known; copy what another one holds to one of these first"));
        }
    };
    let mut provided = Provided { url, root, environment: Vec::new(), notes: Vec::new() };
    if let Some(files) = files {
        provided.read(files, environment)?;
    }
    match (provider, endpoint) {
        (_, None) => {}
        ("S3", Some(endpoint)) => provided.set_endpoint(endpoint),
        ("ABS", Some(endpoint)) => provided.set("AZURE_STORAGE_ENDPOINT", endpoint.to_owned()),
        (_, Some(_)) => provided.notes.push(format!("`--store-endpoint-override` changes nothing for {provider}")),
    }
    Ok(Some(provided))
}

fn local(container: &str, root: &str, environment: &impl Fn(&str) -> Option<String>) -> Result<String> {
    let home = match Path::new(container).is_absolute() {
        true => String::new(),
        false => environment("HOME").ok_or_else(|| {
            wrong("cannot find a local store: HOME is not set")
                .hint("set HOME, or give an absolute `--store-container`")
        })?,
    };
    let path = Path::new(&home).join(container).join(root);
    let text = path.to_string_lossy();
    Ok(format!("file://{}", text.trim_end_matches('/')))
}

/// How a provider's credentials lie in files.
struct Files {
    /// A variable that names a folder with a file for each key.
    folder: &'static str,
    /// A variable that names one JSON file.
    json: &'static str,
    /// A key, and the variable that stores read.
    keys: &'static [(&'static str, &'static str)],
    /// A key that is rotated, and the variable that names its file.
    rotated: &'static [(&'static str, &'static str)],
    /// Keys that cannot be honoured and must not be passed over.
    refused: &'static [&'static str],
}

static S3: Files = Files {
    folder: "AWS_APPLICATION_CREDENTIALS",
    json: "AWS_APPLICATION_CREDENTIALS_JSON",
    keys: &[("region", "AWS_REGION"), ("endpoint", "AWS_ENDPOINT_URL"), ("roleARN", "AWS_ROLE_ARN")],
    rotated: &[("accessKeyID", "AWS_ACCESS_KEY_ID_FILE"), ("secretAccessKey", "AWS_SECRET_ACCESS_KEY_FILE")],
    refused: &["sseCustomerKey", "trustedCaCert"],
};

static ABS: Files = Files {
    folder: "AZURE_APPLICATION_CREDENTIALS",
    json: "AZURE_APPLICATION_CREDENTIALS_JSON",
    keys: &[("storageAccount", "AZURE_STORAGE_ACCOUNT_NAME")],
    rotated: &[("storageKey", "AZURE_STORAGE_ACCOUNT_KEY_FILE")],
    refused: &["domain"],
};

impl Provided {
    fn read(&mut self, files: &Files, environment: &impl Fn(&str) -> Option<String>) -> Result<()> {
        let (found, place) = match (environment(files.folder), environment(files.json)) {
            (Some(folder), _) => (read_folder(Path::new(&folder), files)?, format!("{folder}/")),
            (None, Some(file)) => (read_json(Path::new(&file))?, format!("{file}#")),
            (None, None) => return Ok(()),
        };
        let Some(found) = found else {
            let what = "the credentials that the environment names are not mounted: using what the machine offers";
            self.notes.push(what.to_owned());
            return Ok(());
        };
        if let Some(key) = files.refused.iter().find(|key| found.contains_key(**key)) {
            return Err(wrong(format!("cannot honour `{key}` of the store's credentials"))
                .hint("take it out if the store does without it; otherwise this store cannot be used"));
        }
        for (key, variable) in files.keys {
            let Some(text) = found.get(*key) else { continue };
            match *variable {
                "AWS_ENDPOINT_URL" => self.set_endpoint(text),
                _ => self.set(variable, text.clone()),
            }
        }
        for (key, variable) in files.rotated.iter().filter(|(key, _)| found.contains_key(*key)) {
            self.set(variable, format!("{place}{key}"));
        }
        if let Some(folder) = environment(files.folder).filter(|_| found.contains_key("roleARN")) {
            let token = Path::new(&folder).join("token");
            self.set("AWS_WEB_IDENTITY_TOKEN_FILE", token.display().to_string());
        }
        Ok(())
    }

    fn set_endpoint(&mut self, endpoint: &str) {
        self.set("AWS_ENDPOINT_URL", endpoint.to_owned());
        if endpoint.starts_with("http://") {
            self.set("AWS_ALLOW_HTTP", "true".to_owned());
        }
    }

    fn set(&mut self, name: &str, text: String) {
        self.environment.retain(|(known, _)| known != name);
        self.environment.push((name.to_owned(), text));
    }
}

fn read_folder(folder: &Path, files: &Files) -> Result<Option<BTreeMap<String, String>>> {
    if !folder.is_dir() {
        return Ok(None);
    }
    let mut found = BTreeMap::new();
    for key in files.keys.iter().chain(files.rotated).map(|(key, _)| key).chain(files.refused) {
        let path = folder.join(key);
        let text = small_file::read(&path, BYTES_MAX)
            .map_err(|error| Fault::io(format!("cannot read the credentials in `{}`", path.display()), error))?;
        if let Some(text) = text.map(|text| text.trim().to_owned()).filter(|text| !text.is_empty()) {
            found.insert((*key).to_owned(), text);
        }
    }
    Ok(Some(found))
}

fn read_json(path: &Path) -> Result<Option<BTreeMap<String, String>>> {
    let attempt = format!("cannot read the credentials in `{}`", path.display());
    let text = small_file::read(path, BYTES_MAX).map_err(|error| Fault::io(attempt.clone(), error))?;
    let Some(text) = text else { return Ok(None) };
    let read: std::result::Result<BTreeMap<String, serde_json::Value>, _> = serde_json::from_str(&text);
    // What the reader has to say may hold what it read.
    let read = read.map_err(|_| Fault::new(Code::GardenerFlag, attempt).hint("it must be a JSON object"))?;
    let texts = read.into_iter().filter_map(|(key, value)| Some((key, value.as_str()?.to_owned())));
    Ok(Some(texts.filter(|(_, text)| !text.is_empty()).collect()))
}

fn wrong(attempt: impl Into<String>) -> Fault {
    Fault::new(Code::GardenerFlag, attempt)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gardener::flags::{self, value};

    fn provided(line: &str, variables: &[(&str, String)]) -> Result<Option<Provided>> {
        let table = ["storage-provider", "store-container", "store-prefix", "store-endpoint-override"].map(value);
        let words: Vec<String> = line.split_whitespace().map(str::to_owned).collect();
        let given = flags::read(&table, &words).unwrap();
        of(&given, &|name| variables.iter().find(|(known, _)| *known == name).map(|(_, text)| text.clone()))
    }

    fn write(path: &Path, text: &str) {
        #[expect(clippy::disallowed_methods, reason = "a test's own file")]
        std::fs::write(path, text).unwrap();
    }

    #[test]
    fn providers_become_urls() {
        let home = [("HOME", "/var/lib/nonroot".to_owned()), ("STORAGE_CONTAINER", "bucket".to_owned())];
        let url = |line: &str| provided(line, &home).unwrap().map(|provided| provided.url);
        assert_eq!(url(""), None);
        assert_eq!(url("--storage-provider=S3 --store-prefix=/a/b/").as_deref(), Some("s3://bucket/a/b"));
        assert_eq!(url("--storage-provider=ABS --store-container=c").as_deref(), Some("az://c/"));
        assert_eq!(url("--storage-provider=GCS --store-prefix=p").as_deref(), Some("gs://bucket/p"));
        assert_eq!(
            url("--storage-provider=Local --store-prefix=p").as_deref(),
            Some("file:///var/lib/nonroot/bucket/p")
        );
        for name in ["Swift", "OSS", "ECS", "OCS", "s3", "FAILED"] {
            let fault = provided(&format!("--storage-provider={name}"), &home).unwrap_err();
            assert!(fault.to_string().contains(name), "{fault}");
        }
        assert!(provided("--storage-provider=S3", &[]).is_err());
    }

    #[test]
    fn credentials_come_from_a_folder_or_a_file_and_are_not_shown() {
        let dir = tempfile::tempdir().unwrap();
        for (name, text) in
            [("accessKeyID", "id\n"), ("secretAccessKey", "hidden"), ("region", "eu"), ("endpoint", "http://m:9")]
        {
            write(&dir.path().join(name), text);
        }
        let at = |name: &str, path: &Path| {
            [(if name == "folder" { S3.folder } else { S3.json }, path.display().to_string())]
        };
        let line = "--storage-provider=S3 --store-container=b";
        let one = provided(line, &at("folder", dir.path())).unwrap().unwrap();
        let set = |name: &str| one.environment.iter().find(|(known, _)| known == name).map(|(_, text)| text.as_str());
        let path = |name: &str| dir.path().join(name).display().to_string();
        assert_eq!(set("AWS_ACCESS_KEY_ID_FILE"), Some(path("accessKeyID").as_str()));
        assert_eq!(set("AWS_SECRET_ACCESS_KEY_FILE"), Some(path("secretAccessKey").as_str()));
        assert!(one.environment.iter().all(|(_, text)| text != "hidden"), "what is secret stays in its file");
        assert_eq!((set("AWS_ENDPOINT_URL"), set("AWS_ALLOW_HTTP")), (Some("http://m:9"), Some("true")));
        assert!(!format!("{one:?}").contains("hidden"));
        let json = dir.path().join("all.json");
        write(&json, "{\"accessKeyID\":\"id\",\"secretAccessKey\":\"hidden\"}");
        let two = provided(line, &at("json", &json)).unwrap().unwrap().environment;
        let named = ("AWS_SECRET_ACCESS_KEY_FILE".to_owned(), format!("{}#secretAccessKey", json.display()));
        assert!(two.len() == 2 && two.contains(&named), "{two:?}");
        write(&json, "hidden");
        let fault = provided(line, &at("json", &json)).unwrap_err();
        assert!(!fault.to_string().contains("hidden"));
        // Variables that point nowhere leave what the machine offers.
        let gone = provided(line, &at("folder", &dir.path().join("gone"))).unwrap().unwrap();
        assert!(gone.environment.is_empty() && gone.notes.len() == 1);
        write(&dir.path().join("sseCustomerKey"), "key");
        assert!(provided(line, &at("folder", dir.path())).is_err());
    }
}

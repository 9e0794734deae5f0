//! Turns a URL and the environment into a store.
//!
//! **Rule:** a URL names a place and carries no credentials. They come from the environment, from files that it names, or
//! from where a cloud's own tools find them.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use object_store::aws::AmazonS3Builder;
use object_store::azure::MicrosoftAzureBuilder;
use object_store::gcp::GoogleCloudStorageBuilder;
use object_store::local::LocalFileSystem;
use object_store::path::Path as Name;
use object_store::prefix::PrefixStore;
use object_store::{BackoffConfig, ClientOptions, ObjectStore, RetryConfig};
use quorate_faults::{Code, Fault, Result};
use tokio::runtime::Builder;

use super::clients::Clients;
use super::credentials::{Environment, Given};
use super::{Shared, Store, fault};

/// How long a store is waited for. Every request ends within these limits.
#[derive(Debug, Clone, Copy)]
pub struct Patience {
    /// Until a connection stands.
    pub connect: Duration,
    /// Until a request has been answered, its part of 8 MiB included.
    pub request: Duration,
    /// Until the last retry begins.
    pub retry: Duration,
    /// Retries of a request that may be repeated.
    pub retries: usize,
}

impl Default for Patience {
    fn default() -> Patience {
        // A part of 8 MiB takes a minute on a line of 1.1 Mbit/s; slower lines do not keep up with backups.
        Patience {
            connect: Duration::from_secs(5),
            request: Duration::from_secs(60),
            retry: Duration::from_secs(60),
            retries: 5,
        }
    }
}

impl Patience {
    fn retry_config(&self) -> RetryConfig {
        let backoff =
            BackoffConfig { init_backoff: Duration::from_millis(100), max_backoff: Duration::from_secs(5), base: 2.0 };
        RetryConfig { backoff, max_retries: self.retries, retry_timeout: self.retry }
    }
}

pub(super) fn open(url: &str, create: bool, patience: Patience, environment: Environment) -> Result<Store> {
    let parsed = url::Url::parse(url).map_err(|_| invalid(url, "it is not a URL"))?;
    if !parsed.username().is_empty() || parsed.password().is_some() || parsed.query().is_some() {
        // The URL is not repeated: what should not be in it may be a secret.
        let shown = format!("{}://{}…", parsed.scheme(), parsed.host_str().unwrap_or_default());
        return Err(invalid(&shown, "a store's URL carries no credentials and no options"));
    }
    let mut folder = None;
    let clients = match parsed.scheme() {
        "file" => {
            let path = parsed.to_file_path().map_err(|()| invalid(url, "it does not hold an absolute path"))?;
            let inner = open_folder(url, &path, create)?;
            folder = Some(path);
            Clients::fixed(inner)
        }
        "s3" | "gs" | "az" => {
            let bucket = parsed.host_str().filter(|host| !host.is_empty());
            let bucket = bucket.ok_or_else(|| invalid(url, "it names no bucket"))?.to_owned();
            let prefix = Name::from_url_path(parsed.path())
                .map_err(|_| invalid(url, "its path cannot be part of an object's name"))?;
            let (url, scheme) = (url.to_owned(), parsed.scheme().to_owned());
            Clients::new(environment, move |given| {
                let open = |patience| open_cloud(&url, &scheme, &bucket, &prefix, patience, given);
                Ok((open(patience)?, open(Patience { retries: 0, ..patience })?))
            })?
        }
        _ => return Err(invalid(url, "its scheme is not one of `file`, `s3`, `gs`, `az`")),
    };
    let runtime = Builder::new_multi_thread().worker_threads(1).thread_name("store").enable_all().build();
    let runtime = runtime.map_err(|error| Fault::io("cannot start the runtime for the store", error))?;
    let shared = Shared { url: url.to_owned(), clients, runtime: Some(runtime), folder };
    Ok(Store { shared: Arc::new(shared) })
}

fn invalid(url: &str, why: &str) -> Fault {
    Fault::new(Code::StoreInvalid, format!("cannot use the store `{url}`: {why}"))
        .hint("write file:///path/to/folder, s3://bucket/prefix, gs://bucket/prefix or az://container/prefix")
}

fn open_folder(url: &str, folder: &Path, create: bool) -> Result<Arc<dyn ObjectStore>> {
    if create {
        std::fs::create_dir_all(folder).map_err(|error| no_folder(url, folder, error))?;
    }
    let attempt = || Fault::new(Code::StoreUnreachable, format!("cannot open the store `{url}`"));
    match folder.try_exists() {
        Ok(true) => {}
        Ok(false) => {
            let hint = format!("mount what belongs there; if the store is new, `mkdir -p {}`", folder.display());
            return Err(attempt().hint(hint).caused_by("the folder does not exist"));
        }
        Err(error) => return Err(attempt().hint("check who may read the folders above it").caused_by(error)),
    }
    let inner = LocalFileSystem::new_with_prefix(folder)
        .map_err(|error| attempt().hint("check that the folder can be read").caused_by(error.to_string()))?;
    Ok(Arc::new(inner.with_fsync(true)))
}

/// What is not mounted may come back; what may not be entered may not.
fn no_folder(url: &str, folder: &Path, error: std::io::Error) -> Fault {
    if error.kind() == std::io::ErrorKind::PermissionDenied {
        return Fault::io(format!("cannot make the folder `{}`", folder.display()), error);
    }
    Fault::new(Code::StoreUnreachable, format!("cannot open the store `{url}`"))
        .hint("check that its disk is mounted, and that nothing else stands where the folder should be")
        .caused_by(error.to_string())
}

fn open_cloud(
    url: &str,
    scheme: &str,
    bucket: &str,
    prefix: &Name,
    patience: Patience,
    given: &Given,
) -> Result<Arc<dyn ObjectStore>> {
    let environment = &given.environment;
    let built = match scheme {
        "s3" => s3(bucket, patience, environment).map(|store| prefixed(store, prefix)),
        "gs" => gs(bucket, patience, environment).map(|store| prefixed(store, prefix)),
        _ => az(bucket, patience, environment).map(|store| prefixed(store, prefix)),
    };
    built.map_err(|error| {
        Fault::new(Code::StoreInvalid, format!("cannot use the store `{url}`"))
            .hint("set the credentials and the endpoint in the environment: see docs/guide/object-stores.md")
            .caused_by(fault::clean(&error.to_string(), &given.secrets()))
    })
}

fn prefixed(store: impl ObjectStore, prefix: &Name) -> Arc<dyn ObjectStore> {
    match prefix.as_ref().is_empty() {
        true => Arc::new(store),
        false => Arc::new(PrefixStore::new(store, prefix.clone())),
    }
}

fn client(patience: Patience) -> ClientOptions {
    ClientOptions::new().with_connect_timeout(patience.connect).with_timeout(patience.request)
}

fn s3(bucket: &str, patience: Patience, environment: &Environment) -> object_store::Result<impl ObjectStore + use<>> {
    let mut builder = AmazonS3Builder::new().with_client_options(client(patience));
    for (key, value) in environment.iter().filter(|(key, _)| key.starts_with("AWS_")) {
        if let Ok(key) = key.to_ascii_lowercase().parse() {
            builder = builder.with_config(key, value);
        }
    }
    // Single requests are what every server of this protocol knows, and what says why an object stays.
    let builder = builder.with_disable_bulk_delete(true);
    builder.with_bucket_name(bucket).with_retry(patience.retry_config()).build()
}

fn gs(bucket: &str, patience: Patience, environment: &Environment) -> object_store::Result<impl ObjectStore + use<>> {
    let mut builder = GoogleCloudStorageBuilder::new().with_client_options(client(patience).with_allow_http(true));
    for (key, value) in environment.iter().filter(|(key, _)| key.starts_with("GOOGLE_")) {
        if let Ok(key) = key.to_ascii_lowercase().parse() {
            builder = builder.with_config(key, value);
        }
    }
    builder.with_bucket_name(bucket).with_retry(patience.retry_config()).build()
}

fn az(bucket: &str, patience: Patience, environment: &Environment) -> object_store::Result<impl ObjectStore + use<>> {
    let mut builder = MicrosoftAzureBuilder::new().with_client_options(client(patience));
    for (key, value) in environment.iter().filter(|(key, _)| key.starts_with("AZURE_")) {
        // Names that Azure's own tools use.
        let key = match key.as_str() {
            "AZURE_STORAGE_ACCOUNT" => "AZURE_STORAGE_ACCOUNT_NAME",
            "AZURE_STORAGE_KEY" => "AZURE_STORAGE_ACCOUNT_KEY",
            other => other,
        };
        if let Ok(key) = key.to_ascii_lowercase().parse() {
            builder = builder.with_config(key, value);
        }
    }
    builder.with_container_name(bucket).with_retry(patience.retry_config()).build()
}

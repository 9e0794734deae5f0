//! Services that have a word in changes of peers: each has registered in the node's folder, in a file of its own.
//!
//! ```text
//!   hooks/services/NAME    {"ask": "http://127.0.0.1:8080/veto"}                            asked before each change
//!                          {"objects": "two volumes are here", "to": ["join", "detach"]}    no, for as long as the file is there
//! ```
//!
//! **Rule:** a registration that cannot be read or understood objects, and so does a service that does not answer. It lies in the
//! node's folder, so it has a word also before the node belongs to any cluster.

use std::io::Read;
use std::path::{Path, PathBuf};
use std::time::Duration;

use quorate_etcd::aside::ensure_file;
use quorate_faults::{Code, Fault};
use quorate_host::durable::RealDisk;
use serde::{Deserialize, Serialize};

use super::veto::words;

/// The registrations, in the node's folder.
const FOLDER: &str = "hooks/services";
/// How long a service may take.
const LIMIT: Duration = Duration::from_secs(10);
/// A registration is a line or two.
const BYTES_MAX: u64 = 16 << 10;
/// Of what a service says, the first so many bytes are shown.
const WORDS_MAX: usize = 400;

/// What a service has registered.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Service {
    /// Where it is asked: `http://HOST:PORT/PATH`, with the change and the node as a query. 2xx: it does not object.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) ask: Option<String>,
    /// Why it objects to changes of its own node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) objects: Option<String>,
    /// To which changes it has a word; none: to all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) to: Option<Vec<String>>,
}

/// Puts a registration into the folder of a node.
pub(crate) fn register(dir: &Path, name: &str, service: &Service) -> Result<(), Fault> {
    let folder = dir.join(FOLDER);
    let fail = |error| Fault::io(format!("cannot make `{}`", folder.display()), error);
    std::fs::create_dir_all(&folder).map_err(fail)?;
    let text = serde_json::to_vec_pretty(service)
        .map_err(|error| Fault::new(Code::Internal, "cannot write a registration").caused_by(error))?;
    ensure_file(&RealDisk, &folder.join(name), &text)
}

/// Takes it away again.
pub(crate) fn unregister(dir: &Path, name: &str) -> Result<(), Fault> {
    let path = dir.join(FOLDER).join(name);
    match std::fs::remove_file(&path) {
        Ok(()) => Ok(()),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(Fault::io(format!("cannot remove `{}`", path.display()), error)),
    }
}

/// What all of them have against `what` of node `name`.
pub(super) async fn objections(dir: &Path, what: &str, name: &str) -> Vec<String> {
    let own = dir.file_name().is_some_and(|folder| folder == name);
    let mut asked = tokio::task::JoinSet::new();
    for path in match registered(&dir.join(FOLDER)) {
        Ok(paths) => paths,
        Err(why) => return vec![why],
    } {
        let (what, name) = (what.to_owned(), name.to_owned());
        asked.spawn(async move {
            let objection = objection(&path, own, &what, &name).await;
            objection.map(|why| format!("{} ({why})", path.file_name().unwrap_or_default().to_string_lossy()))
        });
    }
    let mut found: Vec<String> = asked.join_all().await.into_iter().flatten().collect();
    found.sort();
    found
}

fn registered(folder: &Path) -> Result<Vec<PathBuf>, String> {
    let unread = |error: std::io::Error| format!("`{}` cannot be read: {error}", folder.display());
    let entries = match std::fs::read_dir(folder) {
        Ok(entries) => entries,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(unread(error)),
    };
    let mut paths =
        entries.map(|entry| entry.map(|entry| entry.path())).collect::<Result<Vec<_>, _>>().map_err(unread)?;
    // One that is being written is none yet.
    paths.retain(|path| !path.file_name().is_some_and(|name| name.to_string_lossy().contains(".partial-")));
    Ok(paths)
}

async fn objection(path: &Path, own: bool, what: &str, name: &str) -> Option<String> {
    let mut bytes = Vec::new();
    let read = std::fs::File::open(path).and_then(|file| file.take(BYTES_MAX).read_to_end(&mut bytes));
    if let Err(error) = read {
        // Gone since it was listed.
        let gone = error.kind() == std::io::ErrorKind::NotFound;
        return (!gone).then(|| format!("`{}` cannot be read: {error}", path.display()));
    }
    let service: Service = match serde_json::from_slice(&bytes) {
        Ok(service) => service,
        Err(error) => return Some(format!("`{}` cannot be understood: {error}", path.display())),
    };
    if service.to.as_ref().is_some_and(|to| !to.iter().any(|one| one == what)) {
        return None;
    }
    let fixed = service.objects.filter(|_| own);
    match (fixed, &service.ask) {
        (Some(why), _) => Some(format!("{why}; it is registered in `{}`", path.display())),
        (None, Some(url)) => ask(url, what, name).await,
        (None, None) => None,
    }
}

async fn ask(url: &str, what: &str, name: &str) -> Option<String> {
    let silent = |why: String| Some(format!("`{url}` does not answer: {why}"));
    if !url.starts_with("http://") {
        return silent("it is no `http://`".to_owned());
    }
    let client = reqwest::Client::builder().tls_certs_only([]).timeout(LIMIT).no_proxy();
    let client = client.redirect(reqwest::redirect::Policy::none());
    let client = match client.build() {
        Ok(client) => client,
        Err(error) => return silent(error.to_string()),
    };
    let parts = if url.contains('?') { '&' } else { '?' };
    // Names of nodes are host names, and need no quoting.
    let asked = client.get(format!("{url}{parts}change={what}&node={name}")).send().await;
    let mut answer = match asked {
        Ok(answer) => answer,
        Err(error) => return silent(error.to_string()),
    };
    if answer.status().is_success() {
        return None;
    }
    let (status, mut said) = (answer.status(), Vec::new());
    while let (true, Ok(Some(more))) = (said.len() < WORDS_MAX, answer.chunk().await) {
        said.extend_from_slice(&more);
    }
    said.truncate(WORDS_MAX);
    let text = words(&said);
    Some(if text.is_empty() { format!("`{url}` answers {status}") } else { text })
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::net::TcpListener;

    use super::*;

    fn service(ask: Option<&str>, objects: Option<&str>, to: Option<&[&str]>) -> Service {
        let owned = |text: &str| text.to_owned();
        Service {
            ask: ask.map(owned),
            objects: objects.map(owned),
            to: to.map(|to| to.iter().map(|one| owned(one)).collect()),
        }
    }

    /// Answers one request after the other, and returns what was asked.
    fn answers(lines: &'static [&'static str]) -> (String, std::thread::JoinHandle<Vec<String>>) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}/veto", listener.local_addr().unwrap());
        let thread = std::thread::spawn(move || {
            let mut heard = Vec::new();
            for line in lines {
                let (mut wire, _) = listener.accept().unwrap();
                let mut request = [0; 1024];
                let read = wire.read(&mut request).unwrap();
                let request = String::from_utf8_lossy(&request[..read]).into_owned();
                heard.push(request.lines().next().unwrap_or_default().to_owned());
                wire.write_all(line.as_bytes()).unwrap();
            }
            heard
        });
        (url, thread)
    }

    #[tokio::test]
    async fn services_that_have_registered_are_asked_before_every_change() {
        let root = tempfile::tempdir().unwrap();
        let dir = root.path().join("n2");
        assert_eq!(objections(&dir, "join", "n2").await, Vec::<String>::new(), "nobody has registered");
        let (url, thread) = answers(&[
            "HTTP/1.1 409 Conflict\r\nContent-Length: 15\r\nConnection: close\r\n\r\nthree are here\n",
            "HTTP/1.1 204 No Content\r\nConnection: close\r\n\r\n",
        ]);
        register(&dir, "volumes", &service(Some(&url), None, None)).unwrap();
        assert_eq!(objections(&dir, "join", "n2").await, ["volumes (three are here)"]);
        assert_eq!(objections(&dir, "to-server", "n2").await, Vec::<String>::new());
        let heard = thread.join().unwrap();
        assert_eq!(heard, ["GET /veto?change=join&node=n2 HTTP/1.1", "GET /veto?change=to-server&node=n2 HTTP/1.1"]);
        let silent = objections(&dir, "detach", "n2").await;
        assert!(silent.len() == 1 && silent[0].contains("does not answer"), "silence is no: {silent:?}");
        unregister(&dir, "volumes").unwrap();
        unregister(&dir, "volumes").unwrap();
        register(&dir, "postgresql", &service(None, Some("rows are here"), Some(&["join", "detach"]))).unwrap();
        for (what, name, objects) in
            [("join", "n2", true), ("detach", "n2", true), ("to-server", "n2", false), ("detach", "n3", false)]
        {
            let found = objections(&dir, what, name).await;
            assert_eq!(found.len(), usize::from(objects), "{what} of {name}: {found:?}");
        }
        ensure_file(&RealDisk, &dir.join(FOLDER).join("broken"), b"{").unwrap();
        assert_eq!(objections(&dir, "to-server", "n2").await.len(), 1, "what is not understood objects");
    }
}

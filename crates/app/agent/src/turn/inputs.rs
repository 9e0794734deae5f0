//! Watches etcd's program and the files that it reads, for an etcd that refused its settings or its data.
//!
//! **Rule:** etcd is tried again only after something changed, and only once it has stopped changing.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use super::boxed::certificate_files;
use super::etcd;
use super::node::Node;
use super::remembered::Stamp;

/// How often they are observed: a few calls of `stat`.
const EVERY: Duration = Duration::from_secs(1);
/// Paths in settings that are watched; settings name a handful.
const PATHS_MAX: usize = 64;

/// What is there under each path; a directory is not watched.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Inputs {
    program: Option<PathBuf>,
    files: BTreeMap<PathBuf, Option<Stamp>>,
}

/// Returns when the program or a file has changed since the call, and was the same at two observations.
pub(super) async fn changed(node: Arc<Node>) {
    let observe = || {
        let node = Arc::clone(&node);
        async move { tokio::task::spawn_blocking(move || Inputs::observe(&node)).await.ok() }
    };
    let before = observe().await;
    let mut last = before.clone();
    loop {
        tokio::time::sleep(EVERY).await;
        let now = observe().await;
        if now != before && now == last {
            return;
        }
        last = now;
    }
}

impl Inputs {
    fn observe(node: &Node) -> Inputs {
        let program = etcd::locate(node).ok();
        let settings = std::fs::read_to_string(node.etcd_config()).unwrap_or_default();
        let mut paths: BTreeSet<PathBuf> = paths_in(&settings).into_iter().take(PATHS_MAX).collect();
        paths.extend(certificate_files(node));
        paths.extend(program.clone());
        let files = paths.into_iter().filter(|path| !path.is_dir());
        Inputs { program, files: files.map(|path| (path.clone(), Stamp::of(&path))).collect() }
    }
}

/// Absolute paths in settings, also those within a value: `jwt,pub-key=/etc/etcd/jwt.pub`.
fn paths_in(settings: &str) -> Vec<PathBuf> {
    let parts = settings.split(|c: char| c.is_whitespace() || matches!(c, ',' | '=' | '"' | '\'' | '[' | ']'));
    parts.map(Path::new).filter(|path| path.is_absolute()).map(Path::to_owned).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_paths_in_settings() {
        let settings = "name: n1\ndata-dir: \"/var/lib/etcd\"\nauth-token: \"jwt,pub-key=/a/b.pub,priv-key=/a/b.key\"\nlisten-client-urls: http://127.0.0.1:2379\n";
        assert_eq!(paths_in(settings), ["/var/lib/etcd", "/a/b.pub", "/a/b.key"].map(PathBuf::from));
    }
}

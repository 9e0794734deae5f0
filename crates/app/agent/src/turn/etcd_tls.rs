//! The certificates, keys, authorities and revocation lists that a boxed etcd reads: copies in a directory of its own.
//!
//! ```text
//!   tls.dir, or wherever the file says ── renewed, rotated, revoked ──► STATE/etcd-tls ── in the box, read-only ──► etcd
//! ```
//!
//! **Invariant:** the box of etcd has this directory and no other one with keys, whoever the agent runs as. etcd opens its certificate, its
//! key and its lists at each handshake, so a file that is replaced beside it is copied while etcd runs. Authorities count from
//! the next start, as everywhere (`trusting`).

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use quorate_faults::Fault;
use quorate_host::durable::{Access, Disk, DiskFile, Owner, RealDisk, partial_path};
use quorate_host::owners::{May, ensure_may};
use quorate_plan::boxes::Level;
use quorate_plan::spec::{Security, Spec, TlsFiles, for_member};
use tracing::{info, warn};
use zeroize::Zeroizing;

use super::boxed;
use super::node::Node;
use super::trusting;

/// The directory, in the state dir.
const DIR: &str = "etcd-tls";
/// How often the files are compared. A change counts once it has been there for two comparisons: certificate and key are
/// replaced one after the other.
const PERIOD: Duration = Duration::from_millis(400);

/// The directory of a node.
pub(super) fn dir(node: &Node) -> PathBuf {
    node.state_path().join(DIR)
}

/// Whether etcd's next start is to read the copies: it has TLS, and a box.
pub(super) fn is_used(node: &Node) -> bool {
    node.spec.tls_files().is_some() && boxed::level(node) != Level::Off
}

/// The cluster file as etcd's settings are made of it: with the copies, where they are used.
pub(super) fn shown(node: &Node) -> Spec {
    let mut spec = node.spec.clone();
    if is_used(node)
        && let Security::Tls(tls) = &mut spec.security
    {
        let dir = dir(node);
        tls.peer = copies(&dir, "peer");
        tls.client = copies(&dir, "client");
    }
    spec
}

/// A revocation list as etcd's settings name it.
pub(super) fn shown_list(node: &Node, which: &str, list: &Path) -> PathBuf {
    if is_used(node) { list_copy(&dir(node), which) } else { list.to_owned() }
}

fn copies(dir: &Path, which: &str) -> TlsFiles {
    let file = |name: &str| dir.join(format!("{which}{name}")).display().to_string();
    TlsFiles { cert_file: file(".crt"), key_file: file(".key"), trusted_ca_file: file("-ca.crt") }
}

fn list_copy(dir: &Path, which: &str) -> PathBuf {
    dir.join(format!("{which}-ca.crl"))
}

/// Every file that etcd reads, and its copy.
fn files(node: &Node) -> Result<Vec<(PathBuf, PathBuf)>, Fault> {
    let (dir, mut found) = (dir(node), Vec::new());
    let Some(tls) = node.spec.tls_files() else { return Ok(found) };
    for (which, declared) in [("client", &tls.client), ("peer", &tls.peer)] {
        let of = |path: &str| PathBuf::from(for_member(path, node.name()));
        let copy = copies(&dir, which);
        for (from, to) in [
            (&declared.key_file, &copy.key_file),
            (&declared.cert_file, &copy.cert_file),
            (&declared.trusted_ca_file, &copy.trusted_ca_file),
        ] {
            found.push((of(from), PathBuf::from(to)));
        }
    }
    let [client, peer] = trusting::lists(node)?;
    let lists = [("client", client), ("peer", peer)];
    found.extend(lists.into_iter().filter_map(|(which, list)| Some((list?, list_copy(&dir, which)))));
    Ok(found)
}

/// Makes the copies, for the user of etcd: before it starts.
pub(super) fn ensure(node: &Node, owner: Option<Owner>) -> Result<PathBuf, Fault> {
    let dir = dir(node);
    if !dir.is_dir() {
        RealDisk.create_dir(&dir, Access::mode(0o700))?;
    }
    if let Some(owner) = owner {
        ensure_may(&dir, owner, May::Enter)?;
    }
    copy(&files(node)?, &dir, owner)?;
    Ok(dir)
}

/// Copies what differs. All of it is written before the first file is replaced, so that certificate and key change at once.
/// Returns how many did.
fn copy(files: &[(PathBuf, PathBuf)], dir: &Path, owner: Option<Owner>) -> Result<usize, Fault> {
    let mut written = Vec::new();
    for (from, to) in files {
        let fail = |error| Fault::io(format!("cannot read `{}`", from.display()), error);
        let bytes = Zeroizing::new(std::fs::read(from).map_err(fail)?);
        if is_same(to, &bytes, owner) {
            continue;
        }
        let partial = partial_path(to, std::process::id()).ok_or_else(|| {
            Fault::io(format!("cannot write `{}`", to.display()), std::io::ErrorKind::InvalidInput.into())
        })?;
        RealDisk.remove_partial(&partial)?;
        let mut file = RealDisk.create_file(&partial, Access { mode: 0o400, owner })?;
        file.write_all(&bytes)?;
        file.sync()?;
        written.push((partial, to));
    }
    for (partial, to) in &written {
        match RealDisk.rename_new(partial, to) {
            Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => RealDisk.replace_file(partial, to)?,
            renamed => renamed?,
        }
    }
    if !written.is_empty() {
        RealDisk.sync_dir(dir)?;
    }
    Ok(written.len())
}

fn is_same(copy: &Path, bytes: &[u8], owner: Option<Owner>) -> bool {
    let there = std::fs::read(copy).map(Zeroizing::new);
    let belongs = copy.metadata().is_ok_and(|about| owner.is_none_or(|owner| owner.uid == about.uid()));
    belongs && there.is_ok_and(|there| *there == bytes)
}

/// What changes when a file is replaced or rewritten.
type Stamps = Vec<Option<(u64, u64, i64, i64)>>;

fn stamps(files: &[(PathBuf, PathBuf)]) -> Stamps {
    let stamp = |(from, _): &(PathBuf, PathBuf)| {
        let about = std::fs::metadata(from).ok()?;
        Some((about.ino(), about.len(), about.mtime(), about.mtime_nsec()))
    };
    files.iter().map(stamp).collect()
}

/// Copies what changes while etcd runs, until it is ended.
pub(super) async fn keep(node: Arc<Node>) {
    if !is_used(&node) {
        return;
    }
    let (mut done, mut seen): (Stamps, Stamps) = (Vec::new(), Vec::new());
    loop {
        tokio::time::sleep(PERIOD).await;
        let (of, last, copied) = (Arc::clone(&node), seen.clone(), done.clone());
        let looked = tokio::task::spawn_blocking(move || once(&of, &last, &copied)).await;
        match looked {
            Ok((now, Ok(copied))) => {
                if copied {
                    done.clone_from(&now);
                }
                seen = now;
            }
            Ok((now, Err(fault))) => {
                if seen != now {
                    warn!(code = %fault.code(), "etcd keeps its earlier certificates: {fault}");
                }
                seen = now;
            }
            Err(_) => {}
        }
    }
}

/// One comparison. Returns the state of the files, and whether it is the one that has been copied.
fn once(node: &Node, last: &Stamps, done: &Stamps) -> (Stamps, Result<bool, Fault>) {
    let dir = dir(node);
    // Without a copy no boxed etcd has been started yet.
    let Ok(about) = dir.join("peer.key").metadata() else { return (Vec::new(), Ok(false)) };
    let files = match files(node) {
        Ok(files) => files,
        Err(fault) => return (Vec::new(), Err(fault)),
    };
    let now = stamps(&files);
    if now == *done || now != *last {
        return (now.clone(), Ok(now == *done));
    }
    let own = rustix::process::geteuid().as_raw();
    let owner = Owner { uid: about.uid(), gid: about.gid() };
    let copied = copy(&files, &dir, (owner.uid != own).then_some(owner));
    (
        now,
        copied.map(|count| {
            if count > 0 {
                info!(files = count, "etcd has its new certificates");
            }
            true
        }),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn copies_only_what_differs_and_keeps_it_private() {
        let root = tempfile::tempdir().unwrap();
        let at = |name: &str| root.path().join(name);
        let put = |name: &str, text: &str| {
            quorate_etcd::aside::ensure_file(&RealDisk, &at(name), text.as_bytes()).unwrap();
        };
        RealDisk.create_dir(&at("to"), Access::mode(0o700)).unwrap();
        put("key", "1");
        put("crt", "1");
        let files = [(at("key"), at("to/peer.key")), (at("crt"), at("to/peer.crt"))];
        assert_eq!(copy(&files, &at("to"), None).unwrap(), 2);
        assert_eq!(copy(&files, &at("to"), None).unwrap(), 0);
        let before = stamps(&files);
        put("key", "2");
        assert_ne!(stamps(&files), before);
        assert_eq!(copy(&files, &at("to"), None).unwrap(), 1);
        assert_eq!(std::fs::read(at("to/peer.key")).unwrap(), b"2");
        assert_eq!(at("to/peer.key").metadata().unwrap().mode() & 0o7777, 0o400);
        // A file that is missing replaces nothing.
        let missing = [(at("crt"), at("to/peer.key")), (at("none"), at("to/peer.crt"))];
        assert!(copy(&missing, &at("to"), None).is_err());
        assert_eq!(std::fs::read(at("to/peer.key")).unwrap(), b"2");
    }
}
